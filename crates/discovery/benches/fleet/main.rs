//! What a fleet of different workloads costs the server: CPU time, memory, and how soon every proxy has a change.
//!
//! - `cargo bench -p discovery --bench fleet` measures 1,000 services and 200 sidecars on a real API server, next to istiod
//!   if its binary is given (`PILOTAGE_ISTIOD`, or `cargo xtask setup istiod`), and prints a table.
//! - `-- --quick` measures a small mesh from files, in less than three minutes.
//! - `-- --all` measures all parts and writes their pages into `docs/performance`; `-- --part NAME,NAME` some of them. Each
//!   column is written when it is measured, and other columns and pages stay as they are.
//! - `--services N`, `--sidecars N`, `--rounds N`, `--minutes N` (of the long churn) and `--sizes N,N` (of a sweep) replace
//!   the defaults; `--phases endpoint,route,churn,reconnect` selects phases; `--out FOLDER` writes pages elsewhere;
//!   `--istiod` fails if there is no istiod.

mod machine;
mod options;
mod pages;
mod parts;
mod phases;
mod report;

use options::Options;
use report::table;

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if options.parts.is_empty() {
        let columns = parts::printed_comparison(&options).await;
        println!("{} services, {} sidecars\n\n{}", options.services, options.sidecars, table(&columns));
        return;
    }
    for part in &options.parts {
        parts::measure(part, &options).await;
    }
    println!("wrote {}", options.out.display());
}
