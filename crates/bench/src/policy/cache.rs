//! What a policy is simulated in.

/// A simulated memory of a number of pages.
pub trait Cache {
    /// Accesses a page, the next of the trace; whether it was there.
    fn access(&mut self, page: u32) -> bool;
}
