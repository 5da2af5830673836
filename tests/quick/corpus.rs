//! Runs the fuzz targets over their corpus and over seeded mutations of it, with the stable
//! compiler. `scripts/fuzz` searches for more.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use kit::root;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use untrusted::TARGETS;

/// Maximum size of all inputs together, in bytes, since they are part of the repository.
const MAX_CORPUS: usize = 1 << 20;
/// Number of mutated inputs per target and slice.
const CHANGES: u32 = 500;
/// Maximum size of a mutated input in bytes.
const MAX_INPUT: usize = 64 << 10;
/// Texts that parsers treat specially.
const WORDS: [&[u8]; 20] = [
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"0",
    b"-1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"4294967296",
    b":",
    b"\n",
    b"\"",
    b"{",
    b"%",
    b"*",
    b"\xc3\xa4",
    b"\xe2\x80\xa8",
    b"://u:hunter2@",
];

fn folder(name: &str) -> PathBuf {
    root().join("fuzz").join(name)
}

/// Returns the names in a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("the folder can be read").file_name();
        name.into_string().expect("our names are UTF-8")
    };
    entries.map(name).collect()
}

/// Returns the target's inputs with their names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder("corpus").join(target);
    let read = |name: String| {
        let input = fs::read(folder.join(&name)).expect("a file");
        (name, input)
    };
    let all: Vec<_> = names(&folder).into_iter().map(read).collect();
    assert!(!all.is_empty(), "{target} has no corpus");
    all
}

/// Runs one input. `what` names it in the message if a check fails.
fn run(check: fn(&[u8]), input: &[u8], what: impl FnOnce() -> String) {
    if catch_unwind(AssertUnwindSafe(|| check(input))).is_err() {
        // The panic's own message is on standard error already.
        panic!("{}: {}", what(), input.escape_ascii());
    }
}

#[test]
fn each_target_has_a_program_and_a_corpus() {
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(known.len(), TARGETS.len(), "two targets have one name");
    assert_eq!(names(&folder("corpus")), known);
    let programs = known.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&folder("fuzz_targets")), programs);
    let manifest = fs::read_to_string(folder("Cargo.toml")).expect("a manifest");
    for name in &known {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "fuzz/Cargo.toml has no {path}");
        let program = fs::read_to_string(folder("fuzz_targets").join(format!("{name}.rs")));
        let call = format!("untrusted::{name}::check(data)");
        assert!(program.expect("a program").contains(&call), "{name}");
    }
    let bytes: usize = TARGETS
        .iter()
        .flat_map(|(name, _)| corpus(name))
        .map(|(_, input)| input.len())
        .sum();
    assert!(
        bytes <= MAX_CORPUS,
        "the corpus has {bytes} bytes; minimise it with scripts/fuzz"
    );
}

#[test]
fn the_corpus_holds() {
    for (target, check) in TARGETS {
        for (name, input) in corpus(target) {
            run(check, &input, || format!("fuzz/corpus/{target}/{name}"));
        }
    }
}

#[test]
fn changes_of_the_corpus_hold() {
    let slice =
        std::env::var("PROPTEST_RNG_SEED").map_or(0, |text| text.parse().expect("a number"));
    for (at, (target, check)) in TARGETS.into_iter().enumerate() {
        let corpus = corpus(target);
        let mut random = StdRng::seed_from_u64(at as u64 + 1_000 * slice);
        for number in 0..kit::histories(CHANGES) {
            let (name, input) = &corpus[random.random_range(0..corpus.len())];
            let mut changed = input.clone();
            for _ in 0..random.random_range(1..=4) {
                let other = &corpus[random.random_range(0..corpus.len())].1;
                change(&mut changed, other, &mut random);
            }
            changed.truncate(MAX_INPUT);
            run(check, &changed, || {
                format!("change {number} of {target}, of {name}")
            });
        }
    }
}

/// Mutates `input` once. A part of `other` may be inserted.
fn change(input: &mut Vec<u8>, other: &[u8], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let part = |of: usize, random: &mut StdRng| {
        let from = random.random_range(0..=of);
        from..random.random_range(from..=of.min(from + 64))
    };
    match random.random_range(0..6) {
        0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        1 if at < input.len() => input[at] = random.random(),
        2 => drop(input.drain(part(input.len(), random))),
        3 => {
            let copy = input[part(input.len(), random)].to_vec();
            input.splice(at..at, copy);
        }
        4 => {
            let part = other[part(other.len(), random)].to_vec();
            input.splice(at..at, part);
        }
        _ => {
            let word = WORDS[random.random_range(0..WORDS.len())];
            input.splice(at..at, word.iter().copied());
        }
    }
}
