//! The figures of a soak.

use testkit::soak::{MemorySample, SoakReport};

fn report(megabytes: impl Fn(f64) -> f64) -> SoakReport {
    let samples = (0..60).map(|minute| MemorySample { minutes: minute.into(), megabytes: megabytes(minute.into()) });
    SoakReport { samples: samples.collect(), ..SoakReport::default() }
}

#[test]
fn slope_is_growth_in_ten_minutes_without_the_first_third() {
    assert!((report(|minute| 100.0 + 0.2 * minute).slope() - 2.0).abs() < 1e-9);
    assert!(report(|minute| if minute < 20.0 { minute } else { 20.0 }).slope().abs() < 1e-9);
    assert!(SoakReport::default().slope().abs() < 1e-9);
    assert!(report(|minute| minute).plot().contains("polyline"));
}
