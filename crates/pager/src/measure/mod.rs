//! How much memory a program needs: what it would miss with less.
//!
//! **Which pages.** A sample by hashes of the page number, so that all looks are at the same pages,
//! at most [`probes::SAMPLE_MAX`] of them; half of it is left when there are more. This is the
//! spatial sampling of SHARDS (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015), with its fixed
//! size; but by blocks of neighbours, one of each few ([`probes::is_sampled`]).
//!
//! **What is seen of them.** A use of a page that is there is not seen. So the evictor looks at
//! each page of the sample once a round, at a time that does not depend on the program. If the page
//! is there, it is taken out, to the store ([`crate::evict`]), and its next use is a fault that
//! brings it back. If it is out already, nothing is done. Either way a *look* has begun, and the
//! next use tells how long it took from then on. Looks at pages that are not used again stay open.
//!
//! **What follows.** The share of looks whose page was used within time T, times the pages in use,
//! is the mean number of different pages used in a window of T: the working set (Denning, 1968). It
//! tells how much memory LRU needs to keep a page for T, and its slope at T is the rate at which
//! pages are used that were not used for T, which are the misses with so much memory (Denning and
//! Schwartz, 1972; the same thought is in AET, Hu et al., ATC 2016). Stack distances, which SHARDS
//! counts, would need every use of a sampled page to be seen; this needs only the first after a
//! look, and so finds the same curve ([`curve`]).
//!
//! | file | |
//! |---|---|
//! | [`probes`] | the looks that are open, and the fault that ends one |
//! | [`rounds`] | which pages are looked at when |
//! | [`crate::protocol::measured`] | what became of looks, in the ledger |
//! | [`curve`] | the curve that follows |
//! | [`forecast`] | what it means for the program's time |
//!
//! The evictor's part is in [`crate::evict`], which has the pages taken out.
pub mod curve;
pub mod forecast;
pub mod probes;
pub mod rounds;
