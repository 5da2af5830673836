//! The stories in docs/SIMULATE.md: each command prints the table below it.
//!
//! `RENEW_PAGES=1 cargo test --test it simulate::stories::` rewrites the tables.

use std::path::Path;

use kit::root;

use crate::cli::sluicegate_in;

/// The beginnings of a command and of its printed table, or the table's first lines.
const COMMAND: &str = "```\nsluicegate simulate ";
const TABLE: &str = "```text\n";
const END: &str = "\n```\n";

/// Writes the files in the stories.
fn configurations(stories: &str, folder: &Path) {
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("written");
    };
    // `NAME.yaml` contains `TEXT`. Other files are described by the number in which they differ.
    let mut rest = stories;
    while let Some((before, after)) = rest.split_once(".yaml` has `") {
        let (_, name) = before.rsplit_once('`').expect("a name's beginning");
        let (text, after) = after.split_once('`').expect("its end");
        write(&format!("{name}.yaml"), text);
        if name == "now" {
            for (name, max) in [("ninety", 90), ("sixty", 60)] {
                let max = format!("max-requests: {max},");
                let text = text.replace("max-requests: 120,", &max);
                write(&format!("{name}.yaml"), &text);
            }
        }
        rest = after;
    }
    let (_, block) = stories.split_once("```yaml\n").expect("a file");
    let (text, _) = block.split_once(END).expect("its end");
    write("api.yaml", text);
}

#[test]
fn each_story_s_command_prints_the_table_below_it() {
    let path = root().join("docs/SIMULATE.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, stories) = page.split_once("\n## Three stories\n").expect("stories");
    let (stories, after) = stories.split_once("\n## ").expect("their end");
    let folder = tempfile::tempdir().expect("a folder");
    configurations(stories, folder.path());

    let mut parts = stories.split(COMMAND);
    let mut renewed = parts.next().unwrap_or_default().to_owned();
    let mut tables = 0;
    for part in parts {
        let (command, rest) = part.split_once(END).expect("its end");
        let (words, rest) = rest.split_once(TABLE).expect("its table");
        let (table, rest) = rest.split_once(END).expect("the table's end");
        let mut args = vec!["simulate"];
        args.extend(command.split_whitespace());
        let done = sluicegate_in(folder.path(), &args, b"").exited(0);
        let lines = done.out.lines().take(table.lines().count());
        let printed = lines.collect::<Vec<_>>().join("\n");
        renewed += &format!("{COMMAND}{command}{END}{words}{TABLE}{printed}{END}{rest}");
        tables += 1;
    }
    assert_eq!(tables, 4);
    if std::env::var_os("RENEW_PAGES").is_some() {
        let page = format!("{before}\n## Three stories\n{renewed}\n## {after}");
        std::fs::write(path, page).expect("written");
        return;
    }
    let renew = "RENEW_PAGES=1 cargo test --test it simulate::stories:: writes the tables anew";
    assert!(
        renewed == stories,
        "the stories are other ones now; {renew}\n{renewed}"
    );
}
