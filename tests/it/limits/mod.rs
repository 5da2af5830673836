//! Limits that are learned, tried or forecast.

mod forecasts;
mod learned;
mod shadow;
