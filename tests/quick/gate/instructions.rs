//! A board takes a limited number of operators' instructions.

use gate::GateError;
use gate::instructions::{drop_all, put, see};
use kit::gate::{fake_gate, limit, tenant};
use rules::limit::Algorithm;
use rules::steering::{Instruction, MAX_INSTRUCTIONS};

const HOUR_MS: u64 = 3_600_000;

#[tokio::test(start_paused = true)]
async fn a_full_board_takes_an_instruction_once_another_has_ended() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let cancel = |job: usize| Instruction::Cancel(tenant("t"), format!("job-{job}"), 1);
    let posted = async || see(&fake.gate).await.expect("a board")[0].posted.len();
    for job in 0..MAX_INSTRUCTIONS {
        let put = put(&fake.gate, &cancel(job), HOUR_MS).await;
        put.expect("there is room");
    }
    let refused = put(&fake.gate, &cancel(MAX_INSTRUCTIONS), HOUR_MS).await;
    let Err(GateError::Refused(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.starts_with("1000 instructions are in force"), "{why}");
    assert_eq!(posted().await, MAX_INSTRUCTIONS);

    // An instruction replaces another with the same name.
    let again = put(&fake.gate, &cancel(7), 2 * HOUR_MS).await;
    again.expect("it needs no more room");
    let ended = drop_all(&fake.gate, &[cancel(0).name()]).await;
    ended.expect("the gate answers");
    let next = put(&fake.gate, &cancel(MAX_INSTRUCTIONS), HOUR_MS).await;
    next.expect("there is room again");
    assert_eq!(posted().await, MAX_INSTRUCTIONS);
}
