//! Shadow limits in the list of limits.

use super::*;

#[test]
fn a_shadow_has_a_text_in_place_of_a_gauge() {
    has(
        &shows(&at("3", picture), (80, 24)),
        &[" acme            hour       would have made 312 of 4,000 wait, the longest 41.0s\n"],
    );
    let long = at("3", || {
        let mut picture = picture();
        let limits = &mut picture.shown.as_mut().expect("tenants").limits;
        let of = limits.values_mut().next().expect("acme");
        of[3].shadow.as_mut().expect("a shadow").waited = 1_312;
        of[2].shadow = of[3].shadow;
        picture
    });
    has(
        &shows(&long, (80, 24)),
        &[
            "  shadow, 1,312 of 4,000 would wait, longest 41.0s\n",
            "  shadow, one for each x-path\n",
        ],
    );
    has(
        &shows(&long, (120, 40)),
        &["  shadow, would have made 1,312 of 4,000 wait, the longest 41.0s\n"],
    );
    // It can be selected as a row of its own.
    let mut marked = at("3", picture);
    types(&mut marked, "jjj");
    has(&shows(&marked, (80, 24)), &["\n>acme "]);
    assert_eq!(marked.place(), Some(3));
    answer(&mut marked, picture);
    assert_eq!(marked.place(), Some(3));
    // If the list is longer than the screen, the text stays with its row.
    for high in 8..14 {
        let text = shows(&marked, (80, high));
        has(
            &text,
            &[">acme            hour       would have made 312 of"],
        );
    }
}
