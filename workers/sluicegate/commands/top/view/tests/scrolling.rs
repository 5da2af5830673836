//! A page with more lines than the screen.

use super::{answer, at, has, picture, shows, types};

#[test]
fn a_page_scrolls_back_at_once_from_its_end() {
    let mut model = at("2", picture);
    types(&mut model, "\n");
    answer(&mut model, picture);
    types(&mut model, "G");
    let end = shows(&model, (80, 24));
    assert!(end.contains("above: Up)"), "{end}");
    types(&mut model, "k");
    has(&shows(&model, (80, 24)), &["above: Up, 1 below: Down)"]);
    types(&mut model, "g");
    has(&shows(&model, (80, 24)), &["more lines: Down)"]);
}
