//! `cargo xtask cases import DIR [TOPIC...]`: copies recorded cases into `tests/cases`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(from) = args.next() else {
        eprintln!("usage: import_cases DIR [TOPIC...]");
        return ExitCode::from(2);
    };
    let topics: Vec<String> = args.collect();
    match testkit::cases::import(Path::new(&from), &topics) {
        Ok(0) => {
            eprintln!("could not find a case below {from}");
            ExitCode::FAILURE
        }
        Ok(count) => {
            println!("{count} cases copied; run UPDATE=1 cargo test -p translate --test cases to renew the index");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("could not import: {reason}");
            ExitCode::FAILURE
        }
    }
}
