//! Workers with another configuration.

use operator::other_policies::{OtherPolicies, PolicyGroup};

use super::{at, has, picture, shows};

#[test]
fn another_configuration_is_reported_in_one_line() {
    let model = at("1", || {
        let mut picture = picture();
        picture.others = Some(OtherPolicies {
            in_force: true,
            in_use: PolicyGroup {
                number: 1,
                differ: ["max-requests", "plans.pro", "tenants.a", "tenants.b"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            ..OtherPolicies::default()
        });
        picture
    });
    has(
        &shows(&model, (120, 24)),
        &[
            "another configuration is also enforced: max-requests, plans.pro, tenants.a and 1 \
            more differ (sluicegate check)",
        ],
    );
}
