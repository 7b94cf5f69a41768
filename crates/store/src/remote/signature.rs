//! An owner's record on the server, kept true while keys are written, and taken away with them.

use super::engine::{Engine, remove_all};
use super::owner::Owner;
use super::settings::Settings;
use crate::StoreError;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The first bound on slots in the record; each further one is twice as high.
const BOUND_FIRST: u32 = 4096;

/// The record as last written.
struct Written {
    bound: u32,
    at: Option<Instant>,
}

/// See the module's text.
pub(crate) struct Signature {
    pub(crate) owner: Owner,
    prefix: String,
    lease: Duration,
    written: Mutex<Written>,
}

impl Signature {
    /// Nothing is written yet.
    pub(crate) fn new(owner: Owner, settings: &Settings) -> Signature {
        Signature {
            owner,
            prefix: settings.prefix.clone(),
            lease: settings.lease,
            written: Mutex::new(Written { bound: 0, at: None }),
        }
    }

    /// Sees to it that the record covers slot `highest` and that the lease does not run out.
    pub(crate) fn cover(&self, engine: &dyn Engine, highest: u32) -> Result<(), StoreError> {
        let mut written = lock(&self.written);
        let fresh = written.at.is_some_and(|at| at.elapsed() < self.lease / 8);
        if fresh && highest < written.bound {
            return Ok(());
        }
        let mut bound = written.bound.max(BOUND_FIRST);
        while bound <= highest {
            bound = bound.saturating_mul(2);
        }
        engine.write_record(&self.prefix, &self.owner.record(bound, self.lease))?;
        *written = Written {
            bound,
            at: Some(Instant::now()),
        };
        Ok(())
    }

    /// Takes away the record, and leaves the keys.
    pub(crate) fn withdraw(&self, engine: &dyn Engine) -> Result<(), StoreError> {
        let mut written = lock(&self.written);
        if written.bound > 0 {
            engine.remove_record(&self.prefix, &self.owner.name)?;
            written.bound = 0;
        }
        self.owner.leave();
        Ok(())
    }

    /// Takes away all keys that begin with `base`, and the record. What cannot be removed now is
    /// found by the record and the lock's file, which then stay for the next run to clear up by.
    pub(crate) fn remove(&self, engine: &dyn Engine, base: &str) {
        let bound = lock(&self.written).bound;
        if remove_all(engine, base, 0..bound).is_ok() {
            let _ = self.withdraw(engine);
        }
    }
}
