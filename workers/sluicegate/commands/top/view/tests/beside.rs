//! Workers with another configuration.

use sluicegate::operator::others::{Group, Others};

use super::{at, has, picture, shows};

#[test]
fn another_configuration_is_said_in_a_line() {
    let model = at("1", || {
        let mut picture = picture();
        picture.others = Some(Others {
            in_force: true,
            kept: Group {
                number: 1,
                differ: ["max-requests", "plans.pro", "tenants.a", "tenants.b"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            ..Others::default()
        });
        picture
    });
    has(
        &shows(&model, (120, 24)),
        &[
            "another configuration is enforced as well: max-requests, plans.pro, tenants.a and 1 more differ (sluicegate check)",
        ],
    );
}
