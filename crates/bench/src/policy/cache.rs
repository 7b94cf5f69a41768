//! What a policy is simulated in.

/// A simulated memory of a number of pages.
pub trait Cache {
    /// Accesses a page, the next of the trace; whether it was there.
    fn access(&mut self, page: u32) -> bool;

    /// Accesses so far that found their page in memory and unmapped: hits that cost a fault.
    fn soft_faults(&self) -> u64 {
        0
    }
}
