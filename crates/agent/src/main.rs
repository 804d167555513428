//! The `pilot-agent` binary: parses the command line and runs one command. The main one runs and supervises an Envoy.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use agent::args::{AgentCommand, Cli, ProxyArgs};
use agent::environment::Environment;
use agent::handover::{self, Handover};
use agent::plan::Plan;
use agent::process::exec_child;
use agent::{http_client, run};
use anyhow::{Context, Result};
use cli::args::print_usage_error;
use cli::log;
use cli::scopes::Scopes;
use cli::systemd::ServiceManager;
use tracing::{error, info};

const SCOPES: Scopes = &[
    ("envoy", "agent::process"),
    ("xdsproxy", "agent::relay"),
    ("sds", "agent::sds"),
    ("cache", "agent::certificates"),
    ("dns", "agent::dns"),
    ("healthcheck", "agent::status"),
];

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == handover::COMMAND) {
        return exit_code(run_handover());
    }
    let cli = match Cli::read(std::env::args()) {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    let done = match cli.command {
        AgentCommand::Proxy(args) => proxy(&args),
        AgentCommand::Request(request) => {
            runtime().and_then(|r| r.block_on(http_client::request(&request))).and_then(|b| print(&b))
        }
        AgentCommand::Wait(wait) => {
            runtime().and_then(|r| r.block_on(http_client::wait(&wait))).map(|()| ExitCode::SUCCESS)
        }
        AgentCommand::Version(args) => print(format!("{}\n", args.text()).as_bytes()),
        AgentCommand::IstioIptables { args } => agent::iptables::run(&args).map(|()| ExitCode::SUCCESS),
        AgentCommand::ExecChild(args) => Err(exec_child::exec_child(&args)),
    };
    exit_code(done)
}

fn exit_code(done: Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        log::print_failure(format!("pilot-agent: {error:#}"));
        ExitCode::FAILURE
    })
}

fn proxy(args: &ProxyArgs) -> Result<ExitCode> {
    let environment = Environment::of_process();
    let log = log::start(&args.logging, SCOPES, environment.get("RUST_LOG"))?;
    let plan = run::plan(args, &environment).inspect_err(|error| error!("{error:#}"))?;
    let handover = Handover { plan, logging: args.logging.clone() };
    // The log thread does not survive exec.
    log.flush();
    let error = handover.exec();
    info!("could not release the memory used for planning: {error:#}");
    run_plan(&handover.plan)
}

/// Runs the plan that the previous process image left.
fn run_handover() -> Result<ExitCode> {
    let Handover { plan, logging } = Handover::receive()?;
    let _log = log::start(&logging, SCOPES, Environment::of_process().get("RUST_LOG"))?;
    run_plan(&plan)
}

fn run_plan(plan: &Plan) -> Result<ExitCode> {
    let runtime = runtime()?;
    let environment = Environment::of_process();
    let manager = ServiceManager::new(environment.get("NOTIFY_SOCKET"), environment.get("WATCHDOG_USEC"));
    let cause = runtime.block_on(run::run(plan, manager));
    // A thread that is blocked on a dead mount never ends, so threads are not joined.
    runtime.shutdown_background();
    // The error also goes to standard error; the log needs it too.
    let cause = cause.inspect_err(|error| error!("{error:#}"))?;
    Ok(ExitCode::from(cause.code()))
}

fn print(text: &[u8]) -> Result<ExitCode> {
    std::io::stdout().write_all(text).context("could not write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// A single-threaded runtime. Envoy must be started from this thread: its parent-death signal is tied to the thread
/// that forked it.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("could not start the async runtime")
}
