//! The library's API, as `cargo doc` shows it to authors of workers: docs/public-api.txt lists it
//! with signatures, and no link of its pages is broken. `RENEW_PAGES=1 cargo test --test api`
//! renews the list.
//!
//! Reads the pages instead of rustdoc's JSON, which needs a nightly compiler and omits items of
//! hidden modules that the root re-exports.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::root;

const LIST: &str = "docs/public-api.txt";
const HEAD: &str = "\
The library's API: what a worker of one's own may rely on. CONTRIBUTING.md says what to do when it changes.
Written by RENEW_PAGES=1 cargo test --test api
";
/// The auto traits that callers rely on.
const AUTO: [&str; 5] = ["RefUnwindSafe", "Send", "Sync", "Unpin", "UnwindSafe"];

/// Returns the folder of the library's pages. Writes them if they are not up to date.
fn pages() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("cargo's folder for tests is in its target folder");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Variables that cargo sets for tests of a package. With them, ring's build script would run
    // again, here and in the next build.
    for (name, _) in std::env::vars_os() {
        let is_of_package =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_of_package) {
            cargo.env_remove(name);
        }
    }
    let done = cargo
        .args(["doc", "--locked", "--package", "sluicegate"])
        .args(["--lib", "--no-deps", "--target-dir"])
        .arg(target)
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    target.join("doc/sluicegate")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the parts of `text` between each `start` and the next `end`.
fn all_between<'a>(text: &'a str, start: &str, end: &str) -> impl Iterator<Item = &'a str> {
    let parts = text.split(start).skip(1);
    parts.filter_map(move |part| part.split(end).next())
}

/// Returns the pages of items. `all.html` does not list hidden ones.
fn items(folder: &Path) -> Vec<String> {
    let all = read(&folder.join("all.html"));
    let list = all.split("<h1>List of all items</h1>").nth(1);
    let list = list.expect("rustdoc's page of all items").to_owned();
    let mut items: Vec<String> = all_between(&list, "<a href=\"", "\"")
        .map(str::to_owned)
        .collect();
    items.sort_by_key(|page| page.split('.').nth(1).map(str::to_owned));
    items
}

/// Returns the visible text of `html`, with `block` where a block begins or ends.
fn plain(html: &str, block: &str) -> String {
    let html = html.replace("<div", &format!("{block}<div"));
    let html = html.replace("</div>", &format!("</div>{block}"));
    let mut text = String::new();
    for part in html.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    let signs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
        // The mark of types that implement a well-known trait.
        (" ⓘ", ""),
    ];
    signs
        .iter()
        .fold(text, |text, (sign, is)| text.replace(sign, is))
}

/// Returns the signatures in the list `id` of `page`, each on one line.
fn signatures(page: &str, id: &str) -> Vec<String> {
    let Some((_, list)) = page.split_once(&format!("<div id=\"{id}\">")) else {
        return Vec::new();
    };
    let list = list.split("<h2 id=").next().unwrap_or(list);
    all_between(list, "class=\"code-header\">", "</h")
        .map(|html| plain(html, " "))
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Describes the item of `page`: its declaration, its own functions, and the traits that it
/// implements.
fn described(page: &str) -> String {
    let declared = all_between(
        page,
        "<pre class=\"rust item-decl\"><code>",
        "</code></pre>",
    );
    let declared: String = declared.map(|html| plain(html, "\n")).collect();
    let mut lines: Vec<String> = (declared.lines())
        .filter(|line| !line.trim().is_empty())
        .map(str::to_owned)
        .collect();
    lines.extend(signatures(page, "implementations-list"));
    let mut traits = signatures(page, "trait-implementations-list");
    traits.extend(signatures(page, "implementors-list"));
    let is_said = |line: &String| {
        let is_trait = line.starts_with("impl") && !line.contains(" StructuralPartialEq ");
        is_trait || line.starts_with("type ")
    };
    lines.extend(traits.into_iter().filter(is_said));
    let mut found = signatures(page, "synthetic-implementations-list");
    found.retain(|line| {
        let name = line
            .split(" for ")
            .next()
            .and_then(|of| of.split(' ').next_back());
        name.is_some_and(|name| AUTO.contains(&name.trim_start_matches('!')))
    });
    lines.extend(found);
    lines.join("\n")
}

#[test]
fn the_api_matches_its_list() {
    let folder = pages();
    let mut list = HEAD.to_owned();
    for item in items(&folder) {
        let described_item = described(&read(&folder.join(&item)));
        list.push_str(&format!(
            "\n# {}\n{described_item}\n",
            item.trim_end_matches(".html")
        ));
    }
    // If rustdoc changes its HTML, the functions above may find nothing.
    for some in [
        "pub async fn run_with<H>(",
        "impl<H> PreparingHandler for H where H: Handler",
        "pub fn is_good(&self) -> bool",
        "impl Send for Outcome",
    ] {
        assert!(list.contains(some), "{some} is not found in:\n{list}");
    }
    let path = root().join(LIST);
    if std::env::var_os("RENEW_PAGES").is_some() {
        fs::write(&path, &list).expect("written");
    }
    let listed = fs::read_to_string(&path).unwrap_or_default();
    let differ = |of: &str, from: &str| {
        let from: BTreeSet<&str> = from.lines().collect();
        let lines = of.lines().filter(|line| !from.contains(line));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(
        list == listed,
        "the API differs from {LIST}.\nIt has\n{}\nand no more\n{}\nCONTRIBUTING.md says what to do",
        differ(&list, &listed),
        differ(&listed, &list),
    );
}

#[test]
fn no_documentation_link_is_broken() {
    let folder = pages();
    let pages = items(&folder).into_iter().chain(["index.html".to_owned()]);
    let mut links = 0;
    for page in pages {
        let text = read(&folder.join(&page));
        let main = text.split("<main>").nth(1).expect("rustdoc's main part");
        // Skips blanket implementations: their texts are those of the traits, with links relative
        // to the traits' pages.
        let main = main.split("<h2 id=\"blanket-implementations\"").next();
        for link in all_between(main.unwrap_or_default(), "href=\"", "\"") {
            let (file, _) = link.split_once('#').unwrap_or((link, ""));
            links += 1;
            assert!(
                file.is_empty() || file.starts_with("https://") || folder.join(file).exists(),
                "{page}: {link}"
            );
        }
    }
    assert!(links > 100, "{links} links");
}
