# The sluicegate binary on a small Debian. docker build -t sluicegate .
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin sluicegate

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home sluicegate
COPY --from=build /src/target/release/sluicegate /usr/local/bin/sluicegate
USER sluicegate
ENTRYPOINT ["sluicegate"]
CMD ["run", "--config", "/etc/sluicegate.yaml"]
