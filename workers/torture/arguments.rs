//! Tests of the program's arguments. Being a test, it makes cargo build the program together with
//! all others; `scripts/test` runs it afterwards.

use std::process::{Command, Output};

fn torture(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(args)
        .output()
        .expect("it starts")
}

#[test]
fn help_names_every_argument_of_the_scripts() {
    let help = torture(&["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).expect("text");
    for script in ["test", "torture"] {
        let path = kit::root().join("scripts").join(script);
        let script = std::fs::read_to_string(path).expect("a script");
        let calls = script.lines().filter(|line| line.contains("torture --"));
        let words = calls.flat_map(|line| line.split_whitespace());
        let own = |word: &&str| word.starts_with("--") && !["--help", "--rabbitmq4"].contains(word);
        let mut seen = 0;
        for word in words.filter(own) {
            assert!(help.contains(word), "{word} is not in:\n{help}");
            seen += 1;
        }
        assert!(seen > 0, "no arguments found");
    }
}

#[test]
fn invalid_run_plans_are_reported() {
    let output = torture(&["--minutes", "0"]);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--minutes 0: must be above 0"), "{errors}");
}
