//! What a fleet of different workloads costs the server: CPU time, memory, and how soon every proxy has a change.
//!
//! - `cargo bench -p discovery --bench fleet` measures 1,000 services and 200 sidecars on a real API server; with
//!   `-- --istiod` istiod on the same API server too.
//! - `-- --quick` measures a small mesh from files, in less than three minutes.
//! - `-- --full` adds growth with services and sidecars, other fleets and a long churn, and writes tables and plots into the docs.
//! - `--services N`, `--sidecars N`, `--rounds N`, `--minutes N` (of the long churn) replace the defaults.

mod phases;
mod plot;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::fleet::FleetOptions;
use testkit::fleet::mesh::{ControlPlane, SimulatedMesh};

use phases::Run;
use plot::{Line, plot};
use report::{Column, Sweep, table};

/// Sizes for growth with services, at 200 sidecars.
const SERVICES: [usize; 4] = [100, 300, 1000, 3000];
/// Sizes for growth with sidecars, at 1,000 services.
const SIDECARS: [usize; 4] = [10, 50, 200, 1000];
/// Streams that are only held.
const HELD: usize = 2000;
/// The long churn.
const CHANGES_A_SECOND: u32 = 200;
const CHANGED_SERVICES: usize = 100;
/// Figures that are plotted.
const PLOTTED: [&str; 5] =
    ["sync: CPU", "one endpoint: CPU", "one endpoint: p99", "one VirtualService: CPU", "memory with proxies (RssAnon)"];

/// What to measure.
struct Options {
    services: usize,
    sidecars: usize,
    rounds: usize,
    minutes: u64,
    full: bool,
    quick: bool,
    istiod: bool,
}

impl Options {
    fn parse() -> Options {
        let arguments: Vec<String> = std::env::args().collect();
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let number = |flag: &str, default: usize| {
            let at = arguments.iter().position(|argument| argument == flag);
            let value = at.and_then(|at| arguments.get(at + 1));
            value.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{flag} {text}: not a number")))
        };
        let quick = has("--quick");
        let (services, sidecars, rounds) = if quick { (300, 50, 5) } else { (1000, 200, 20) };
        Options {
            services: number("--services", services),
            sidecars: number("--sidecars", sidecars),
            rounds: number("--rounds", rounds),
            minutes: number("--minutes", 10) as u64,
            full: has("--full"),
            quick,
            istiod: has("--istiod"),
        }
    }
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    let binary = std::env::var_os("PILOTAGE_DISCOVERY").map(PathBuf::from);
    let binary = binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_pilot-discovery").into());
    let mesh = match options.quick {
        true => SimulatedMesh::in_files(options.services),
        false => SimulatedMesh::in_kubernetes(options.services).await,
    };
    let mut columns = Vec::new();
    if options.istiod {
        columns.push(measured("istiod", &mesh, Product::Istiod, &options).await);
    }
    columns.push(measured("Pilotage", &mesh, Product::Pilotage(&binary), &options).await);
    let (services, sidecars) = (options.services, options.sidecars);
    let mut page = format!("## {services} services, {sidecars} sidecars\n\n{}", table(&columns));
    println!("{page}");
    if options.full {
        page.push_str(&others(&mesh, &binary, &options).await);
        drop(mesh);
        let sweeps = [by_services(&binary, &options).await, by_sidecars(&binary, &options).await];
        write_pages(&page, &sweeps);
    }
}

/// The server to measure.
#[derive(Clone, Copy)]
enum Product<'a> {
    Pilotage(&'a Path),
    Istiod,
}

async fn start(mesh: &SimulatedMesh, product: Product<'_>) -> ControlPlane {
    match product {
        Product::Pilotage(binary) => mesh.serve(binary).await,
        Product::Istiod => mesh.serve_with_istiod().await,
    }
}

/// All phases of the table.
async fn measured(title: &str, mesh: &SimulatedMesh, product: Product<'_>, options: &Options) -> Column {
    let fleet = FleetOptions { workloads: options.sidecars, ..FleetOptions::default() };
    let mut run = Run::sync(mesh, start(mesh, product).await, fleet).await;
    run.endpoint(options.rounds).await;
    run.route(options.rounds.div_ceil(2)).await;
    run.short_churn().await;
    run.reconnect().await;
    Column { title: title.to_owned(), figures: run.figures }
}

/// Other fleets on the same mesh: replicas, gateways, slow readers, many held streams, a long churn.
async fn others(mesh: &SimulatedMesh, binary: &Path, options: &Options) -> String {
    let pilotage = || start(mesh, Product::Pilotage(binary));
    let (all, slow) = (options.sidecars, options.sidecars / 20);
    let fleets = [
        ("different workloads", FleetOptions { workloads: all, ..FleetOptions::default() }),
        ("replicas of one", FleetOptions { replicas: all, ..FleetOptions::default() }),
        ("half gateways", FleetOptions { workloads: all / 2, gateways: all / 2, ..FleetOptions::default() }),
        ("5 % slow readers", FleetOptions { workloads: all - slow, slow, ..FleetOptions::default() }),
    ];
    let mut columns = Vec::new();
    for (title, fleet) in fleets {
        let mut run = Run::sync(mesh, pilotage().await, fleet).await;
        run.endpoint(options.rounds).await;
        columns.push(Column { title: title.to_owned(), figures: run.figures });
    }
    let mut page = format!("\n## Other fleets of {all} proxies\n\n{}", table(&columns));
    let held = FleetOptions { workloads: HELD, ..FleetOptions::default() };
    let figures = Run::sync(mesh, pilotage().await, held).await.figures;
    let columns = [Column { title: format!("{HELD} sidecars"), figures }];
    page.push_str(&format!("\n## Many streams\n\n{}", table(&columns)));
    let fleet = FleetOptions { workloads: all, ..FleetOptions::default() };
    let mut run = Run::sync(mesh, pilotage().await, fleet).await;
    run.figures.clear();
    run.churn(CHANGES_A_SECOND, Duration::from_secs(60 * options.minutes), CHANGED_SERVICES).await;
    let columns = [Column { title: "Pilotage".to_owned(), figures: run.figures }];
    page.push_str(&format!("\n## Long churn\n\n{}", table(&columns)));
    println!("{page}");
    page
}

/// The phases whose growth is measured.
async fn grown(title: String, mesh: &SimulatedMesh, binary: &Path, sidecars: usize, rounds: usize) -> Column {
    let fleet = FleetOptions { workloads: sidecars, ..FleetOptions::default() };
    let mut run = Run::sync(mesh, start(mesh, Product::Pilotage(binary)).await, fleet).await;
    run.endpoint(rounds).await;
    run.route(rounds.div_ceil(2)).await;
    run.reconnect().await;
    Column { title, figures: run.figures }
}

async fn by_services(binary: &Path, options: &Options) -> Sweep {
    let mut columns = Vec::new();
    for services in SERVICES {
        let mesh = SimulatedMesh::in_kubernetes(services).await;
        columns.push(grown(services.to_string(), &mesh, binary, options.sidecars, options.rounds).await);
    }
    Sweep { of: "services", sizes: SERVICES.into(), columns }
}

async fn by_sidecars(binary: &Path, options: &Options) -> Sweep {
    let mesh = SimulatedMesh::in_kubernetes(options.services).await;
    let mut columns = Vec::new();
    for sidecars in SIDECARS {
        columns.push(grown(sidecars.to_string(), &mesh, binary, sidecars, options.rounds).await);
    }
    Sweep { of: "sidecars", sizes: SIDECARS.into(), columns }
}

/// Writes the tables and plots into the documentation.
fn write_pages(page: &str, sweeps: &[Sweep]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
    let put = |name: &str, text: &str| {
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join(name), text));
        written.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    };
    let mut page = format!("# Measured fleets\n\nWritten by `make bench`; do not edit.\n\n{page}");
    for sweep in sweeps {
        let of = sweep.of;
        page.push_str(&format!("\n## Growth with {of}\n\n{}\n{}", table(&sweep.columns), sweep.exponents()));
        page.push_str(&format!("\n![growth with {of}]({of}.svg)\n"));
        let lines = PLOTTED.iter().filter_map(|name| {
            let label = sweep.columns.iter().flat_map(|column| &column.figures).find(|figure| figure.name == *name)?;
            Some(Line { label: label.label(), points: sweep.points(name) })
        });
        put(&format!("{of}.svg"), &plot(&format!("Growth with {of}"), of, &lines.collect::<Vec<_>>()));
    }
    println!("{page}");
    put("README.md", &page);
}
