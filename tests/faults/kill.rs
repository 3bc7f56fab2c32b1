//! The kill sweep.

use serde_json::Value;

use super::subject::{self, Subject};
use crate::support::attachment::for_ours;
use crate::support::snapshot::Watch;
use crate::support::tracer::{Stop, Then, trace};

#[test]
fn bridge() {
    for_ours("bridge", |lab| {
        let subject: Subject = subject::all().into_iter().find(|s| s.name == std::env::var("S").unwrap_or("bridge".into())).unwrap();
        if !(subject.prepare)(lab) { return }
        let container = lab.container();
        let atts = subject.attach(lab, &container);
        let mut result = Value::Null;
        for at in &atts { result = at.call("ADD", (!result.is_null()).then_some(&result)).run().ok(); }
        for at in atts.iter().rev() { at.del(); }
        let t=std::time::Instant::now();
        let watch = Watch::start(lab, &[&container]);
        eprintln!("watch start {:?}", t.elapsed());
        let t=std::time::Instant::now();
        eprintln!("changes {:?} {:?}", watch.changes_now(), t.elapsed());
        let mut result = Value::Null;
        for at in &atts {
            let t=std::time::Instant::now();
            let mut changes=0;
            let traced = trace(&at.call("ADD", (!result.is_null()).then_some(&result)), |stop: &Stop| {
                if stop.result.is_some() && stop.changes() { changes+=1; eprintln!("{} {} = {:?}", stop.number, stop.describe(), stop.result); }
                Then::Go
            });
            eprintln!("{} calls, {changes} changes {:?} {:?}", traced.calls, t.elapsed(), traced.outcome.status);
            result = traced.outcome.ok();
        }
        for at in atts.iter().rev() { at.del(); }
        watch.assert_unchanged("x");
        let main=&atts[0];
        let t=std::time::Instant::now();
        for n in 1..60 {
            let traced = trace(&main.call("ADD", None), |stop: &Stop| if stop.number==n*5 { Then::Kill } else { Then::Go });
            if !traced.killed { break }
            for at in atts.iter().rev() { at.del(); }
            watch.assert_unchanged(&format!("kill {n}"));
        }
        eprintln!("59 kills {:?}", t.elapsed());
    });
}
