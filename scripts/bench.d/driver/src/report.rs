//! What was measured, and the tables made of it.

use serde::Serialize;

use crate::plan::{Plan, Role};

/// Durations in nanoseconds.
pub type Samples = Vec<u64>;

/// One round of one server.
#[derive(Default, Serialize)]
pub struct Round {
    /// From spawn to the answer to `initialize`.
    pub start: Samples,
    /// One call after the other, the server on another core than the driver.
    pub call: Samples,
    /// The same on one core.
    pub call_one_core: Samples,
    pub calls_per_second: f64,
    /// KiB.
    pub resident_idle: u64,
    pub resident_after: u64,
    pub answer_bytes: usize,
}

/// Every sample of a run; servers, queries and seekers in the plan's order.
#[derive(Serialize)]
pub struct Measured {
    /// The floor of every start, round by round.
    pub spawn: Vec<Samples>,
    pub servers: Vec<Vec<Round>>,
    pub queries: Vec<Vec<Vec<Samples>>>,
    /// For each query, how the seekers' answers differ when they do: a search that finds less is faster.
    pub differ: Vec<Option<String>>,
}

impl Measured {
    pub fn new(plan: &Plan) -> Self {
        Self {
            spawn: Vec::new(),
            servers: plan.servers.iter().map(|_| Vec::new()).collect(),
            differ: plan.queries.iter().map(|_| None).collect(),
            queries: plan.queries.iter().map(|query| query.seekers.iter().map(|_| Vec::new()).collect()).collect(),
        }
    }
}

fn quantile(samples: &[u64], at: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let place = ((sorted.len() as f64 - 1.0) * at).round() as usize;
    sorted.get(place).copied().unwrap_or(0) as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// A figure's median over the rounds, with the lowest and the highest.
struct Figure {
    middle: f64,
    low: f64,
    high: f64,
}

impl Figure {
    fn of(rounds: &[Round], what: impl Fn(&Round) -> f64) -> Self {
        let all: Vec<f64> = rounds.iter().map(what).collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(0.0, f64::max);
        Self { middle: median(all), low, high }
    }

    fn show(&self, digits: usize) -> String {
        let Self { middle, low, high } = self;
        format!("{middle:.digits$} ({low:.digits$}-{high:.digits$})")
    }
}

const MILLI: f64 = 1e6;
const MICRO: f64 = 1e3;
const KIB_IN_MIB: f64 = 1024.0;

fn start_of(rounds: &[Round]) -> Figure {
    Figure::of(rounds, |round| quantile(&round.start, 0.5) / MILLI)
}

fn call_of(rounds: &[Round], at: f64) -> Figure {
    Figure::of(rounds, |round| quantile(&round.call, at) / MICRO)
}

fn mebibytes(binary: Option<&String>) -> Option<f64> {
    let size = std::fs::metadata(binary?).ok()?.len();
    Some(size as f64 / KIB_IN_MIB / KIB_IN_MIB)
}

/// Prints the tables, and says whether every budget is met.
pub fn print(plan: &Plan, measured: &Measured) -> bool {
    for line in &plan.machine {
        println!("- {line}");
    }
    println!(
        "- medians over {} rounds, (lowest-highest); a round: {} starts, {} calls one by one, {} with {} in flight, {} searches",
        plan.rounds, plan.starts, plan.calls, plan.calls_in_flight, plan.in_flight, plan.searches
    );
    let spawn = median(measured.spawn.iter().map(|samples| quantile(samples, 0.5) / MILLI).collect());
    println!("- spawning {} and waiting for its end: {spawn:.2} ms\n", plan.floor.join(" "));
    servers(plan, measured);
    queries(plan, measured);
    budgets(plan, measured)
}

fn servers(plan: &Plan, measured: &Measured) {
    println!(
        "| server | version | start to `initialize`, ms | read p50, us | p99, us | p50 on one core, us | calls/s, {} in flight | memory idle, MiB | after, MiB | binary, MiB | answer, bytes |",
        plan.in_flight
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (server, rounds) in plan.servers.iter().zip(&measured.servers) {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {} | {} |",
            server.name,
            server.version,
            start_of(rounds).show(2),
            call_of(rounds, 0.5).show(1),
            call_of(rounds, 0.99).show(1),
            Figure::of(rounds, |round| quantile(&round.call_one_core, 0.5) / MICRO).show(1),
            Figure::of(rounds, |round| round.calls_per_second).show(0),
            Figure::of(rounds, |round| round.resident_idle as f64 / KIB_IN_MIB).middle,
            Figure::of(rounds, |round| round.resident_after as f64 / KIB_IN_MIB).middle,
            mebibytes(server.binary.as_ref()).map_or("-".into(), |size| format!("{size:.2}")),
            rounds.first().map_or(0, |round| round.answer_bytes),
        );
    }
}

/// The median over the rounds of a seeker's median, in milliseconds.
fn search_of(rounds: &[Samples]) -> f64 {
    median(rounds.iter().map(|samples| quantile(samples, 0.5) / MILLI).collect())
}

fn queries(plan: &Plan, measured: &Measured) {
    if plan.queries.is_empty() {
        return;
    }
    println!("\n| query | who | ms | against the last |\n| --- | --- | --- | --- |");
    for (query, seekers) in plan.queries.iter().zip(&measured.queries) {
        let last = seekers.last().map_or(0.0, |rounds| search_of(rounds));
        for (seeker, rounds) in query.seekers.iter().zip(seekers) {
            let time = search_of(rounds);
            println!("| {} | {} | {time:.1} | {:.2} |", query.name, seeker.name, time / last);
        }
    }
    for (query, differ) in plan.queries.iter().zip(&measured.differ) {
        if let Some(differ) = differ {
            println!("\n**{}: the answers differ**: {differ}", query.name);
        }
    }
}

/// Prints each budget of the design beside what was measured.
fn budgets(plan: &Plan, measured: &Measured) -> bool {
    println!("\n| budget | for | measured | at most | met |\n| --- | --- | --- | --- | --- |");
    let mut all = true;
    let mut row = |what: &str, whom: &str, figure: Option<f64>, limit: f64, unit: &str| {
        let met = figure.is_none_or(|figure| figure <= limit);
        all &= met;
        let figure = figure.map_or("not measured".into(), |figure| format!("{figure:.2}{unit}"));
        println!("| {what} | {whom} | {figure} | {limit}{unit} | {} |", if met { "yes" } else { "**no**" });
    };
    let echo = plan.servers.iter().position(|server| server.role == Role::Echo).and_then(|at| measured.servers.get(at));
    for (server, rounds) in plan.servers.iter().zip(&measured.servers) {
        if !matches!(server.role, Role::Berth | Role::StaticBerth) {
            continue;
        }
        // Against the echo and the floor of the same round, so that a busy minute does not count for one of them alone.
        let against = echo.map(|echo| {
            let both = rounds.iter().zip(echo);
            median(both.map(|(ours, echo)| quantile(&ours.call, 0.5) / quantile(&echo.call, 0.5)).collect())
        });
        // NaN where there is but one core, and then not measured.
        let against = against.filter(|ratio| ratio.is_finite());
        let both = rounds.iter().zip(&measured.spawn);
        let beyond = both.map(|(ours, spawn)| (quantile(&ours.start, 0.5) - quantile(spawn, 0.5)) / MILLI).collect();
        row("small read, against the echo", &server.name, against, 1.3, "");
        row("start to `initialize`, beyond spawning", &server.name, Some(median(beyond)), 2.0, " ms");
        let idle = Figure::of(rounds, |round| round.resident_idle as f64 / KIB_IN_MIB).middle;
        row("idle resident memory", &server.name, Some(idle), 3.0, " MiB");
        if server.role == Role::StaticBerth {
            row("static binary", &server.name, mebibytes(server.binary.as_ref()), 3.0, " MiB");
        }
    }
    if !plan.servers.iter().any(|server| server.role == Role::StaticBerth) {
        row("static binary", "none built", None, 3.0, " MiB");
    }
    for (query, seekers) in plan.queries.iter().zip(&measured.queries) {
        let (Some(limit), Some(last)) = (query.budget, seekers.last()) else {
            continue;
        };
        for (seeker, rounds) in query.seekers.iter().zip(seekers).filter(|(seeker, _)| seeker.tool.is_some()) {
            let ratios = rounds.iter().zip(last).map(|(ours, rg)| quantile(ours, 0.5) / quantile(rg, 0.5)).collect();
            row(&format!("{}, against rg", query.name), &seeker.name, Some(median(ratios)), limit, "");
        }
    }
    all && measured.differ.iter().all(Option::is_none)
}
