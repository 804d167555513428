//! A source that fails or panics is restarted with backoff.

use model::change::{Change, SourceId};
use model::problem::{Problem, Subject};
use sources::health::SourceState;
use sources::source::{ChangeSender, Source, SourceError};

use crate::follower::Follower;

/// A source that panics in its first run, fails in the second and works in the third.
struct Clumsy {
    runs: usize,
}

impl Source for Clumsy {
    fn id(&self) -> SourceId {
        SourceId("clumsy".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.runs += 1;
        match self.runs {
            1 => panic!("tripped"),
            2 => return Err(SourceError::Failed("fell".into())),
            _ => {}
        }
        sender
            .send(vec![
                Change::Problems(vec![Problem::error(Subject::Source("clumsy".into()), "tired")]),
                Change::Synced,
            ])
            .await?;
        sender.closed().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_or_fails_is_restarted() {
    let follower = Follower::synced(Clumsy { runs: 0 }).await;
    let report = follower.report();
    assert_eq!(report.counts.restarts, 2);
    assert_eq!(report.counts.problems, 1);
    assert_eq!(report.state, SourceState::Live);
    assert_eq!(report.last_failure.map(|f| f.message).as_deref(), Some("fell"));
}

/// Syncs once, then panics in every run.
struct Brittle {
    runs: usize,
}

impl Source for Brittle {
    fn id(&self) -> SourceId {
        SourceId("brittle".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.runs += 1;
        if self.runs == 1 {
            sender.send(vec![Change::Synced]).await?;
        }
        panic!("snapped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_broke_after_sync_is_stale_and_waits_longer_each_time() {
    let follower = Follower::synced(Brittle { runs: 0 }).await;
    let began = tokio::time::Instant::now();
    while follower.report().counts.restarts < 8 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // Waits of 0.1, 0.2, … 12.8 s, each with up to a quarter of jitter: at least 19 s.
    assert!(began.elapsed() > std::time::Duration::from_secs(19));
    assert!(matches!(follower.report().state, SourceState::Stale { reason, .. } if reason == "panicked: snapped"));
}
