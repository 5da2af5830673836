use super::*;

fn tenant(name: &str) -> ReportedTenant {
    ReportedTenant::new(Tenant::parse(name).expect("a tenant"))
}

fn names(tenants: &[ReportedTenant]) -> Vec<&str> {
    tenants.iter().map(|it| it.tenant.as_str()).collect()
}

fn full(tenants: Vec<ReportedTenant>) -> Report {
    Report {
        at_ms: 1_700_000_000_000,
        host: "host-1".to_owned(),
        pid: 42,
        version: "1.2.3".to_owned(),
        pipeline: "mail".to_owned(),
        up_ms: 61_000,
        ready: true,
        notes: vec!["a note".to_owned()],
        load: Load {
            running: 3,
            slots: 16,
            saturation: 0.25,
            in_memory: 9,
            delayed: 2,
            idle: 1,
        },
        over_ms: 2_000,
        tenants,
        ..Report::default()
    }
}

#[test]
fn a_report_survives_a_round_trip() {
    let mut acme = tenant("acme");
    acme.waiting = 4;
    acme.line_ends_ms = 1_700_000_060_000;
    acme.waits_for = "default".to_owned();
    let report = full(vec![acme, tenant("a \"quoted\" \u{202e}one")]);
    let text = report.clone().write();
    let read = Report::read(&text).expect("it is one");
    let mut expected = report;
    expected.format = FORMAT;
    assert_eq!(read, expected);
    assert!(!text.contains("denials\":0,\"closed"), "no zeros: {text}");
}

#[test]
fn few_tenants_are_all_named_and_nothing_is_left_out() {
    let mut left_out = UnnamedTenants::default();
    let all = vec![tenant("b"), tenant("a")];
    assert_eq!(names(&busiest(all, &mut left_out)), ["a", "b"]);
    assert!(left_out.is_nothing());
}

#[test]
fn of_many_tenants_the_first_by_each_order_are_named_and_the_others_are_summed_up() {
    let mut all: Vec<ReportedTenant> = (0..100_000)
        .map(|number| {
            let mut one = tenant(&format!("t-{number:05}"));
            (one.waiting, one.starts, one.denials) = (1, 2, 3);
            one
        })
        .collect();
    for (at, change) in [
        (90_000, (|it| it.waiting = 50) as fn(&mut ReportedTenant)),
        (91_000, |it| it.line_ends_ms = 50),
        (92_000, |it| it.denials = 50),
        (93_000, |it| it.closed_until_ms = 50),
        (94_000, |it| it.starts = 50),
    ] {
        change(&mut all[at]);
    }
    let mut left_out = UnnamedTenants {
        starts: 7,
        uncounted: true,
        ..UnnamedTenants::default()
    };
    let named = busiest(all, &mut left_out);
    assert_eq!(named.len(), MAX_TENANTS);
    let firsts = ["t-90000", "t-91000", "t-92000", "t-93000", "t-94000"];
    assert_eq!(names(&named)[..5], firsts);
    let sum = |by: fn(&ReportedTenant) -> u64| named.iter().map(by).sum::<u64>();
    assert_eq!(left_out.tenants, 99_900);
    assert_eq!(left_out.waiting + sum(|it| it.waiting), 100_000 + 49);
    assert_eq!(left_out.starts + sum(|it| it.starts), 200_000 + 48 + 7);
    assert_eq!(left_out.denials + sum(|it| it.denials), 300_000 + 47);
}

#[test]
fn a_report_is_bounded_and_counts_what_it_omits() {
    // A tenant's name has no control characters, which JSON would make six times as long. Quotes
    // only double.
    let long = |number: usize| {
        let mut one = tenant(&format!("{number:03}{}", "\"".repeat(252)));
        (one.waiting, one.waits_for) = (2, "l".repeat(64));
        one
    };
    let mut report = full((0..MAX_TENANTS).map(long).collect());
    report.host = "é".repeat(10_000);
    report.notes = vec!["\u{1}".repeat(10_000); 100];
    let text = report.write();
    assert!(text.len() <= MAX_BYTES, "{} bytes", text.len());
    assert!(text.len() > MAX_BYTES / 2, "{} bytes", text.len());
    let read = Report::read(&text).expect("it is one");
    let named = u64::try_from(read.tenants.len()).expect("few");
    assert_eq!(read.left_out.tenants + named, 100);
    assert_eq!(read.left_out.waiting, 2 * read.left_out.tenants);
    assert_eq!(
        read.tenants[0].tenant,
        long(0).tenant,
        "the first ones stay"
    );
}

#[test]
fn invalid_reports_are_refused() {
    let text = full(vec![tenant("acme")]).write();
    for wrong in [
        "",
        "{}",
        "[]",
        &text[..text.len() - 1],
        &text.replace("acme", ""),
        &text.replace("acme", "\\u0007"),
        &text.replace("\"pid\":42", "\"pid\":-1"),
        &" ".repeat(MAX_BYTES + 1),
    ] {
        let read = Report::read(wrong);
        assert!(matches!(read, Err(ReportError::Broken(_))), "{wrong}");
    }
    let newer = text.replace("\"format\":1", "\"format\":2");
    assert_eq!(Report::read(&newer), Err(ReportError::Format(2)));
    let more = text.replace("\"pid\"", "\"colour\":\"blue\",\"pid\"");
    assert!(Report::read(&more).is_ok(), "what is added is passed over");
}
