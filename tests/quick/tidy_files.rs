//! House rules for files: every one is compiled, scripts can be run, and suites that filters name
//! exist.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use kit::root;
use kit::sources::{File, files, page};

/// Whether `text` has `mod name;`.
fn has_module(text: &str, name: &str) -> bool {
    let module = format!("mod {name};");
    text.lines().map(str::trim).any(|line| {
        let before = line.strip_suffix(&module);
        before.is_some_and(|before| before.is_empty() || before.starts_with("pub"))
    })
}

/// Lists Rust files that no module names. Cargo doesn't compile them.
fn forgotten(files: &[File]) -> Vec<&str> {
    let is_compiled = |path: &str| {
        let (folder, file) = path.rsplit_once('/').expect("a folder");
        let (folder, name) = match file {
            "mod.rs" => folder.rsplit_once('/').expect("a folder above"),
            file => (folder, file.trim_end_matches(".rs")),
        };
        let parents = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"].map(|end| folder.to_owned() + end);
        let mut parents = files.iter().filter(|file| parents.contains(&file.path));
        parents.any(|parent| has_module(&parent.text, name))
    };
    let paths = files.iter().map(|file| file.path.as_str());
    paths.filter(|path| !is_compiled(path)).collect()
}

/// Files that manifests name, or that cargo finds by itself.
fn roots() -> Vec<String> {
    let mut roots = Vec::new();
    for File { path, text } in files(&["workers", "tests", "fuzz"], "Cargo.toml") {
        let folder = path.trim_end_matches("Cargo.toml");
        let named = text
            .lines()
            .filter_map(|line| line.strip_prefix("path = \""));
        roots.extend(named.map(|path| format!("{folder}{}", path.trim_end_matches('"'))));
    }
    roots
}

#[test]
fn every_file_is_compiled() {
    let folders = ["src", "workers", "tests", "benches", "fuzz"];
    let (files, roots) = (files(&folders, ".rs"), roots());
    let is_root = |path: &str| {
        path.ends_with("/main.rs")
            || path.ends_with("/lib.rs")
            || path == "tests/api.rs"
            || roots.iter().any(|root| root == path)
    };
    let mut found = forgotten(&files);
    found.retain(|path| !is_root(path));
    assert_eq!(found, [""; 0]);
    let texts = [
        ("main", "mod a;\n    pub(crate) mod b;\n// mod c;"),
        ("a", ""),
        ("b/mod", "mod d;"),
        ("b/d", ""),
        ("c", ""),
        ("b/a", ""),
    ];
    let files = texts.map(|(name, text)| File::new(&format!("x/{name}.rs"), text));
    assert_eq!(forgotten(&files), ["x/main.rs", "x/c.rs", "x/b/a.rs"]);
}

#[test]
fn scripts_are_executable() {
    let mut scripts = 0;
    for script in files(&["scripts", ".ci"], "") {
        let file = fs::metadata(root().join(&script.path)).expect("a file");
        let can_run = file.permissions().mode() & 0o111 == 0o111;
        let is_script = script.text.starts_with("#!");
        assert_eq!(
            can_run, is_script,
            "{}: executable, with an interpreter",
            script.path
        );
        scripts += usize::from(is_script);
    }
    assert!(scripts > 8, "{scripts}");
}

/// Returns the modules that filters in `text` name: `test(/^(A|B)::/)` of nextest, and `A::`.
fn suites(text: &str) -> Vec<&str> {
    let code = text.lines().filter(|line| !line.starts_with('#'));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:|()".contains(c);
    let words = code.flat_map(move |line| line.split(move |c| !is_part(c)));
    let named = words.filter_map(|word| word.rsplit_once("::"));
    let named = named.flat_map(|(names, _)| names.split(['|', '(', ')']));
    named.filter(|name| !name.is_empty()).collect()
}

/// The paths of the modules of a binary of tests, such as `http::calls`.
fn modules(binary: &str) -> Vec<String> {
    let folder = format!("tests/{binary}/");
    let files = files(&[&folder], ".rs").into_iter();
    let path = |file: File| {
        let path = file
            .path
            .trim_start_matches(&folder)
            .trim_end_matches(".rs");
        path.trim_end_matches("/mod").replace('/', "::")
    };
    files.map(path).collect()
}

#[test]
fn suites_named_by_filters_exist() {
    let known = [modules("it"), modules("simulation")].concat();
    for path in [".config/nextest.toml", "scripts/test"] {
        let text = page(path);
        let named = suites(&text);
        assert!(named.len() > 20, "{path}: {named:?}");
        for suite in named {
            assert!(known.iter().any(|name| name == suite), "{path}: {suite}");
        }
    }
    let filters = "not test(/^(a|b_c|d::e)::/)\n  'f::  g::'\n# h::\nx=${y%::}";
    assert_eq!(suites(filters), ["a", "b_c", "d::e", "f", "g"]);
}
