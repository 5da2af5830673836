//! House rules for words: phrases that make readers translate do not come back to comments, texts
//! and pages.

use kit::sources::{File, files};

/// Phrases that are not used, with what to write instead.
const PHRASES: [(&str, &str); 16] = [
    ("at most can be", "the maximum is N"),
    ("so many", "the number of"),
    ("nobody is", "no worker is, or the noun that is meant"),
    ("is told of", "learns of"),
    ("is heard", "arrives"),
    ("what is to be", "the noun that is meant"),
    ("those which", "the noun that is meant"),
    ("the one which", "the noun that is meant"),
    ("are the most of", "the maximum is N"),
    ("is of no use", "has no effect"),
    ("is no url", "is not a URL"),
    ("makes no sense", "is invalid"),
    ("stays as it is", "does not change"),
    ("tell apart", "distinguish"),
    ("told apart", "distinguished"),
    ("which there is not", "unknown, or does not exist"),
];

/// Words that are not part of a function's name: they describe a thing by a clause.
const NOT_IN_NAMES: [&str; 7] = ["nobody", "said", "told", "untold", "who", "whoever", "whom"];

/// Returns a line for each function in `file` with a name that has to be translated.
fn names(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let after_fn = line
            .split_once("fn ")
            .map(|(before, name)| (before.trim(), name));
        let Some((_, name)) = after_fn.filter(|(before, _)| !before.contains(['/', '"'])) else {
            continue;
        };
        let name = name.split(|c| !is_name(c)).next().unwrap_or_default();
        if name.split('_').any(|word| NOT_IN_NAMES.contains(&word)) {
            found.push(format!("{}:{}: {name}", file.path, index + 1));
        }
    }
    found
}

/// Returns a line for each phrase in `file`: where it is, and what to write instead.
fn phrases(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if line.contains(phrase) {
                let number = index + 1;
                found.push(format!(
                    "{}:{number}: \"{phrase}\": write \"{instead}\"",
                    file.path
                ));
            }
        }
    }
    found
}

#[test]
fn phrases_that_need_translation_do_not_come_back() {
    let mut found = Vec::new();
    for (folders, end) in [
        (&["src", "workers", "tests"][..], ".rs"),
        (&["src"], ".html"),
        (&["lua"], ".lua"),
        (&["docs"], ".md"),
        (&["docs"], ".yaml"),
    ] {
        let files = files(folders, end);
        let others = files
            .iter()
            .filter(|file| file.path != "tests/quick/tidy_words.rs");
        found.extend(others.flat_map(phrases));
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_phrase_is_named_with_its_place_and_a_suggestion() {
    let text =
        "/// Returns the rows.\n// So many at most are shown.\nlet text = \"it is no url\";\n";
    assert_eq!(
        phrases(&File::new("src/a.rs", text)),
        [
            "src/a.rs:2: \"so many\": write \"the number of\"",
            "src/a.rs:3: \"is no url\": write \"is not a URL\"",
        ]
    );
}

#[test]
fn function_names_need_no_translation() {
    let files = files(&["src", "workers", "tests", "benches"], ".rs");
    let found: Vec<_> = files.iter().flat_map(names).collect();
    assert_eq!(found, [""; 0]);
    let text = "    pub async fn is_nobody(&self) {}\n/// fn told\nfn a_saddle() {}\n";
    assert_eq!(
        names(&File::new("src/a.rs", text)),
        ["src/a.rs:1: is_nobody"]
    );
}
