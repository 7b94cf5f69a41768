//! How much memory a program needs: what it would miss with less.
//!
//! **Which pages.** A sample by hashes of the page number, so that all looks are at the same pages,
//! at most [`probes::SAMPLE_MAX`] of them; half of it is left when there are more. This is the
//! spatial sampling of SHARDS (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015), with its fixed
//! size. They are single pages, at most one of sixteen neighbours: where neighbours are out as
//! well, one fault may bring all of them, and each would seem to be used as often as all of them
//! are.
//!
//! **What is seen of them.** A use of a page that is there is not seen. So the evictor looks at
//! each page of the sample once a round, at a time that does not depend on the program. If the page
//! is there, it is taken out, to the store ([`crate::evict`]), and its next use is a fault that
//! brings it back. If it is out already, nothing is done. Either way a *look* has begun, and the
//! next use tells how long it took from then on. Looks at pages that are not used again stay open.
//!
//! **What follows.** Think of pages that are evicted when they have been there for a time T. Then
//! looks tell which part of the pages in use has come back within T: that is what memory holds, and
//! over T it is the rate of misses. This is how characteristic times give the misses of a cache
//! (Che, Tung and Wang, 2002; of one that evicts in the order of arrival: Fricker, Robert and
//! Roberts, 2012), and the pager is such a cache, as it does not see the uses of a page that is
//! there. How long each page stays is taken to be a matter of chance, with T as the mean: with
//! uses by chance that is the same (Gelenbe, 1973), and a look's one time is enough for it
//! ([`curve`]). Where pages are used strictly in turn, more is missed than is expected.
//!
//! **Programs change.** Looks are counted by the part of the time in which they began. What came
//! into use since then needs memory, too: memory holds the pages in use at a time, but for those
//! that were there at the look and have not been used since. So T is found for each part, with the
//! pages in use at its end.
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
