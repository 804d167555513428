//! Status conditions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Why a condition is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionFault {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ConditionFault {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> ConditionFault {
        ConditionFault { reason, message: message.into() }
    }

    /// Joins two faults; the reason of the first is kept.
    pub(super) fn joined(first: Option<ConditionFault>, second: Option<ConditionFault>) -> Option<ConditionFault> {
        match (first, second) {
            (Some(first), Some(second)) => {
                Some(ConditionFault { reason: first.reason, message: format!("{}; {}", first.message, second.message) })
            }
            (first, second) => first.or(second),
        }
    }
}

/// Conditions by type.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusConditions(BTreeMap<&'static str, Condition>);

#[derive(Clone, Debug)]
struct Condition {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl StatusConditions {
    /// Sets a condition to true.
    pub(super) fn hold(&mut self, kind: &'static str, reason: &'static str, message: impl Into<String>) {
        self.0.insert(kind, Condition { status: "True", reason, message: message.into() });
    }

    /// Sets a condition to false. The last call wins.
    pub(super) fn fail(&mut self, kind: &'static str, fault: ConditionFault) {
        self.0.insert(kind, Condition { status: "False", reason: fault.reason, message: fault.message });
    }

    pub(super) fn fail_if(&mut self, kind: &'static str, fault: Option<ConditionFault>) {
        if let Some(fault) = fault {
            self.fail(kind, fault);
        }
    }

    /// As JSON, with `observedGeneration`.
    pub(super) fn json(&self, generation: i64) -> Value {
        let condition = |(kind, condition): (&&str, &Condition)| {
            let mut out = json!({
                "type": kind,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
            });
            if generation != 0 {
                out["observedGeneration"] = json!(generation);
            }
            out
        };
        self.0.iter().map(condition).collect()
    }
}
