//! Settings of property tests whose cases are the same in each run. `PROPTEST_RNG_SEED` sets another seed, and
//! `PROPTEST_CASES` the number of cases.

use std::env;

use proptest::test_runner::{Config, RngSeed};

const SEED: u64 = 1;

/// This many cases from a fixed seed, unless the environment says otherwise.
pub fn config(cases: u32) -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    config
}

/// What repeats a failure, for its message.
pub fn repeat(config: &Config) -> String {
    match config.rng_seed {
        RngSeed::Fixed(seed) => format!("PROPTEST_RNG_SEED={seed} PROPTEST_CASES={}", config.cases),
        RngSeed::Random => "random seed".to_owned(),
    }
}
