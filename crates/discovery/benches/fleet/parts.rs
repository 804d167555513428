//! The parts of the measurement, each with its own page.

use testkit::fleet::FleetOptions;
use testkit::fleet::mesh::{ControlPlane, SimulatedMesh};
use testkit::servers;

use crate::machine::origin;
use crate::options::{MeasuredPhase, Options};
use crate::pages;
use crate::phases::{CHANGED, Run};
use crate::report::{Column, Figure, ISTIOD, PILOTAGE, Unit};

/// Sizes for growth with services, at 200 sidecars.
const SERVICES: [usize; 5] = [100, 300, 1000, 3000, 10_000];
/// Sizes for growth with sidecars, at 1,000 services.
const SIDECARS: [usize; 5] = [10, 50, 200, 1000, 2000];
/// Streams that are only held.
const HELD: usize = 2000;
/// The long churn.
const CHANGES_A_SECOND: u32 = 200;
const CHANGED_SERVICES: usize = 100;
/// Bytes a second of slow readers: those that take each piece of 16 KiB within the server's limit, which it keeps, and
/// those that do not, which it may disconnect.
const SLOW: u32 = 8192;
const TOO_SLOW: u32 = 1024;

/// A part of the measurement.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) content: PartContent,
}

pub(crate) enum PartContent {
    Comparison,
    Fleets,
    SlowReaders,
    Held,
    LongChurn,
    /// Growth with this.
    Growth(&'static str),
    Sources,
}

pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "comparison",
        title: "A fleet next to istiod",
        about: "1,000 services of 2 ports and 10 endpoints, 200 sidecars of different workloads in 20 namespaces; istiod only \
                where its binary was given.",
        content: PartContent::Comparison,
    },
    Part {
        name: "fleets",
        title: "Other fleets",
        about: "Replicas of one workload, gateways, state-of-the-world clients, sidecars limited by Sidecar resources, and \
                a mix of all.",
        content: PartContent::Fleets,
    },
    Part {
        name: "slow",
        title: "Slow readers",
        about: "What 5 % slow readers cost the others: such that read 8 KiB a second and stay connected, and such that read \
                1 KiB a second, too slowly to take each piece within `PILOT_XDS_SEND_TIMEOUT`; those that are \
                disconnected return.",
        content: PartContent::SlowReaders,
    },
    Part {
        name: "held",
        title: "Many streams",
        about: "2,000 sidecars that stay connected.",
        content: PartContent::Held,
    },
    Part {
        name: "churn",
        title: "A long churn",
        about: "200 endpoint changes a second over 100 services for ten minutes: staleness and memory over time.",
        content: PartContent::LongChurn,
    },
    Part {
        name: "services",
        title: "Growth with services",
        about: "100 to 10,000 services for 200 sidecars.",
        content: PartContent::Growth("services"),
    },
    Part {
        name: "sidecars",
        title: "Growth with sidecars",
        about: "10 to 2,000 sidecars on 1,000 services.",
        content: PartContent::Growth("sidecars"),
    },
    Part {
        name: "sources",
        title: "Sources",
        about: "The same number of services from an API server, from files and from Consul.",
        content: PartContent::Sources,
    },
];

/// Measures a part, and writes each column when it is known.
pub(crate) async fn measure(part: &Part, options: &Options) {
    let write = |column: &Column| {
        println!("{}, {}:", part.title, column.title);
        column.figures.iter().for_each(|figure| println!("  {}: {}", figure.label(), figure.value));
        pages::write(&options.out, part, std::slice::from_ref(column));
    };
    match part.content {
        PartContent::Comparison => comparison(options).await.iter().for_each(write),
        PartContent::Fleets => fleets(options, write).await,
        PartContent::SlowReaders => slow_readers(options, write).await,
        PartContent::Held => {
            let mesh = SimulatedMesh::in_kubernetes(options.services).await;
            let held = options.sizes.as_ref().and_then(|sizes| sizes.first().copied()).unwrap_or(HELD);
            let fleet = FleetOptions { workloads: held, ..FleetOptions::default() };
            let run = Run::sync(&mesh, pilotage(&mesh, options).await, fleet).await;
            write(&column(&format!("{held} sidecars"), run));
        }
        PartContent::LongChurn => {
            let mesh = SimulatedMesh::in_kubernetes(options.services).await;
            let mut run = Run::sync(&mesh, pilotage(&mesh, options).await, different(options)).await;
            let seconds = std::time::Duration::from_secs_f64(60.0 * options.minutes);
            run.churn(CHANGES_A_SECOND, seconds, CHANGED_SERVICES).await;
            write(&column(PILOTAGE, run));
        }
        PartContent::Growth("services") => {
            for services in sizes(options, &SERVICES) {
                let mesh = SimulatedMesh::in_kubernetes(services).await;
                write(&grown(&mesh, services, options.sidecars, options).await);
            }
        }
        PartContent::Growth(_) => {
            let mesh = SimulatedMesh::in_kubernetes(options.services).await;
            for sidecars in sizes(options, &SIDECARS) {
                write(&grown(&mesh, sidecars, sidecars, options).await);
            }
        }
        PartContent::Sources => sources(options, write).await,
    }
}

/// The columns of the comparison, for a table that is only printed; from files if it is to be quick.
pub(crate) async fn printed_comparison(options: &Options) -> Vec<Column> {
    match options.quick {
        true => vec![compared(PILOTAGE, &SimulatedMesh::in_files(options.services), options).await],
        false => comparison(options).await,
    }
}

async fn comparison(options: &Options) -> Vec<Column> {
    let mesh = SimulatedMesh::in_kubernetes(options.services).await;
    let mut columns = Vec::new();
    if options.istiod || servers::optional_binary("istiod").is_some() {
        columns.push(compared(ISTIOD, &mesh, options).await);
    } else {
        println!("there is no istiod to compare with: set PILOTAGE_ISTIOD or run cargo xtask setup istiod");
    }
    columns.push(compared(PILOTAGE, &mesh, options).await);
    columns
}

/// All phases on one server.
async fn compared(product: &str, mesh: &SimulatedMesh, options: &Options) -> Column {
    let server = match product {
        ISTIOD => mesh.serve_with_istiod().await,
        _ => pilotage(mesh, options).await,
    };
    let mut run = Run::sync(mesh, server, different(options)).await;
    phases(&mut run, options, &[MeasuredPhase::Churn]).await;
    column(product, run)
}

/// Fleets of other kinds of proxies.
async fn fleets(options: &Options, write: impl Fn(&Column)) {
    let mesh = SimulatedMesh::in_kubernetes(options.services).await;
    mesh.limit_scopes(CHANGED).await;
    let all = options.sidecars;
    let (half, fifth) = (all / 2, all / 5);
    let none = FleetOptions::default();
    let mix = FleetOptions { replicas: fifth, gateways: fifth, sotw: fifth, scoped: fifth, ..none };
    let fleets = [
        ("different workloads", FleetOptions { workloads: all, ..none }),
        ("replicas of one", FleetOptions { replicas: all, ..none }),
        ("half gateways", FleetOptions { workloads: all - half, gateways: half, ..none }),
        ("half state of the world", FleetOptions { workloads: all - half, sotw: half, ..none }),
        ("half with Sidecar", FleetOptions { workloads: all - half, scoped: half, ..none }),
        ("mix", FleetOptions { workloads: all - 4 * fifth, ..mix }),
    ];
    for (title, fleet) in fleets {
        let mut run = Run::sync(&mesh, pilotage(&mesh, options).await, fleet).await;
        phases(&mut run, options, &[]).await;
        write(&column(title, run));
    }
}

/// What slow readers cost the others.
async fn slow_readers(options: &Options, write: impl Fn(&Column)) {
    let mesh = SimulatedMesh::in_kubernetes(options.services).await;
    let (all, slow) = (options.sidecars, options.sidecars.div_ceil(20));
    let none = FleetOptions { workloads: all - slow, ..FleetOptions::default() };
    let fleets = [
        ("none", none),
        ("8 KiB/s", FleetOptions { slow, slow_rate: SLOW, ..none }),
        ("1 KiB/s", FleetOptions { slow, slow_rate: TOO_SLOW, ..none }),
    ];
    let mut before: Option<Column> = None;
    for (title, fleet) in fleets {
        let mut run = Run::sync(&mesh, pilotage(&mesh, options).await, fleet).await;
        let readers = run.slow_readers();
        phases(&mut run, options, &[]).await;
        if slow > 0 && fleet.slow > 0 {
            run.note_slow_readers(&readers, fleet.slow_rate == SLOW).await;
        }
        let mut column = column(title, run);
        for name in ["one endpoint: p99", "one VirtualService: p99"] {
            let values = column.get(name).zip(before.as_ref().and_then(|before| before.get(name)));
            let Some(ratio) = values.map(|(now, before)| now.value / before.value) else { continue };
            column.figures.push(Figure::new(format!("{name}, times that without slow readers"), Unit::Times, ratio));
        }
        write(&column);
        before.get_or_insert(column);
    }
}

/// The same mesh from several sources. Consul has no routes.
async fn sources(options: &Options, write: impl Fn(&Column)) {
    for title in ["API server", "files", "Consul"] {
        let mesh = match title {
            "files" => SimulatedMesh::in_files(options.services),
            "Consul" => SimulatedMesh::in_consul(options.services).await,
            _ => SimulatedMesh::in_kubernetes(options.services).await,
        };
        let mut run = Run::sync(&mesh, pilotage(&mesh, options).await, different(options)).await;
        if options.measures(MeasuredPhase::Endpoint) {
            run.endpoint(options.rounds).await;
        }
        write(&column(title, run));
    }
}

/// The phases whose growth is measured.
async fn grown(mesh: &SimulatedMesh, size: usize, sidecars: usize, options: &Options) -> Column {
    let fleet = FleetOptions { workloads: sidecars, ..FleetOptions::default() };
    let mut run = Run::sync(mesh, pilotage(mesh, options).await, fleet).await;
    phases(&mut run, options, &[]).await;
    column(&size.to_string(), run)
}

/// The selected phases; churn only where it is listed.
async fn phases(run: &mut Run<'_>, options: &Options, more: &[MeasuredPhase]) {
    if options.measures(MeasuredPhase::Endpoint) {
        run.endpoint(options.rounds).await;
    }
    if options.measures(MeasuredPhase::Route) {
        run.route(options.rounds.div_ceil(2)).await;
    }
    if options.measures(MeasuredPhase::Churn) && more.contains(&MeasuredPhase::Churn) {
        run.short_churn().await;
    }
    if options.measures(MeasuredPhase::Reconnect) {
        run.reconnect().await;
    }
}

async fn pilotage(mesh: &SimulatedMesh, options: &Options) -> ControlPlane {
    mesh.serve(&options.binary).await
}

fn different(options: &Options) -> FleetOptions {
    FleetOptions { workloads: options.sidecars, ..FleetOptions::default() }
}

fn sizes(options: &Options, own: &[usize]) -> Vec<usize> {
    options.sizes.clone().unwrap_or_else(|| own.to_vec())
}

fn column(title: &str, run: Run<'_>) -> Column {
    Column { title: title.to_owned(), origin: origin(), figures: run.figures, series: run.series }
}
