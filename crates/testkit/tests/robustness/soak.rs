//! The figures of a soak.

use testkit::soak::{MOST_GROWTH, MemorySample, SoakReport};

fn report(megabytes: impl Fn(f64) -> f64) -> SoakReport {
    let sample = |minute: u8| {
        let (minutes, resident) = (minute.into(), megabytes(minute.into()));
        MemorySample { minutes, resident, owned: resident / 2.0 }
    };
    let samples = (0..60).map(sample);
    SoakReport { samples: samples.collect(), ..SoakReport::default() }
}

#[test]
fn slope_is_growth_in_ten_minutes_without_the_first_third() {
    assert!((report(|minute| 100.0 + 0.2 * minute).slope() - 2.0).abs() < 1e-9);
    assert!(report(|minute| if minute < 20.0 { minute } else { 20.0 }).slope().abs() < 1e-9);
    assert!(SoakReport::default().slope().abs() < 1e-9);
    let growing = report(|minute| minute);
    assert!(growing.plot().contains("RSS (MB)") && growing.plot().contains("RssAnon (MB)"));
    assert!(growing.to_string().contains("slope +10.00 MB in ten minutes (RssAnon +5.00)"), "{growing}");
}

#[test]
fn growth_and_failed_requests_miss_the_goals() {
    let growth = |each_ten: f64| report(move |minute| 100.0 + each_ten / 10.0 * minute).goals();
    assert_eq!(growth(MOST_GROWTH * 0.9), Ok(()));
    assert!(growth(MOST_GROWTH * 1.1).is_err_and(|missed| missed.contains("RSS grew by 0.55 MB")));
    let failed = SoakReport { requests: 7, failed: 1, ..report(|_| 100.0) };
    assert_eq!(failed.goals(), Err("1 of 7 requests failed".to_owned()));
}
