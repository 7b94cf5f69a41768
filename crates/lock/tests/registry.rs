//! The registry against a plain array of pages.
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_lock::{Holders, Mode, Registry, Segment};
use proptest::prelude::*;

const PAGES: u64 = 64;

#[derive(Debug, Clone)]
enum Step {
    Lock(u64, u64, Mode),
    Unlock(u64, u64),
    UnlockMode(u64, u64, Mode),
    Hold(u64, u64, Mode, Option<Mode>),
    Release(usize),
    Forget(u64, u64),
    Relocate(u64, u64, u64, u64),
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Full), Just(Mode::OnFault)]
}

fn step() -> impl Strategy<Value = Step> {
    let span = || (0..PAGES, 0..20u64).prop_map(|(s, n)| (s, (s + n).min(PAGES)));
    prop_oneof![
        (span(), mode()).prop_map(|((s, e), m)| Step::Lock(s, e, m)),
        span().prop_map(|(s, e)| Step::Unlock(s, e)),
        (span(), mode()).prop_map(|((s, e), m)| Step::UnlockMode(s, e, m)),
        (span(), mode(), prop::option::of(mode()))
            .prop_map(|((s, e), m, f)| Step::Hold(s, e, m, f)),
        any::<usize>().prop_map(Step::Release),
        span().prop_map(|(s, e)| Step::Forget(s, e)),
        (span(), span()).prop_map(|((a, b), (c, d))| Step::Relocate(a, b, c, d)),
    ]
}

fn pages(start: u64, end: u64) -> PageRange {
    PageRange {
        start: PageNumber(start),
        end: PageNumber(end),
    }
}

fn check(registry: &Registry, model: &[Holders]) {
    let mut seen = vec![Holders::NONE; model.len()];
    let mut last: Option<Segment> = None;
    let (mut owned, mut locked) = (0, 0);
    for segment in registry.iter() {
        assert!(!segment.range.is_empty() && segment.holders.count() > 0);
        if let Some(last) = last {
            assert!(last.range.end <= segment.range.start, "disjoint, in order");
            let touching = last.range.end == segment.range.start;
            assert!(
                !(touching && last.holders == segment.holders),
                "equal neighbours are merged"
            );
        }
        owned += usize::from(segment.holders.owned());
        locked += segment.range.pages();
        for page in segment.range.iter() {
            seen[page.0 as usize] = segment.holders;
        }
        last = Some(segment);
    }
    assert_eq!(seen, model);
    assert_eq!(registry.has_owners(), owned > 0);
    assert_eq!(registry.pages(), locked);
    for (page, holders) in model.iter().enumerate() {
        assert_eq!(registry.holders(PageNumber(page as u64)), *holders);
    }
}

/// Changes both in the same way, from page `start` to `end`.
fn update(
    registry: &mut Registry,
    model: &mut [Holders],
    (start, end): (u64, u64),
    change: impl Fn(Holders) -> Holders,
) {
    registry.update(pages(start, end), &change);
    let span = &mut model[start as usize..end as usize];
    span.iter_mut()
        .for_each(|holders| *holders = change(*holders));
}

fn relocate(model: &mut [Holders], (a, b): (u64, u64), (c, d): (u64, u64)) {
    let old: Vec<Holders> = model[a as usize..b as usize].to_vec();
    model[a as usize..b as usize].fill(Holders::NONE);
    for (index, page) in (c..d).enumerate() {
        model[page as usize] = match old.get(index) {
            Some(holders) => *holders,
            None => Holders::NONE.with_process(old.last().and_then(Holders::mode)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_registry_is_an_array_of_pages(steps in prop::collection::vec(step(), 1..60)) {
        let mut registry = Registry::new();
        let mut model = vec![Holders::NONE; PAGES as usize];
        let mut held: Vec<(u64, u64, Mode)> = Vec::new();
        for step in steps {
            let (registry, model) = (&mut registry, &mut model[..]);
            match step {
                Step::Lock(s, e, m) => {
                    update(registry, model, (s, e), |h| h.with_process(Some(m)));
                }
                Step::Unlock(s, e) => update(registry, model, (s, e), |h| h.with_process(None)),
                Step::UnlockMode(s, e, m) => update(registry, model, (s, e), |h| {
                    if h.process == Some(m) { h.with_process(None) } else { h }
                }),
                Step::Hold(s, e, m, foreign) => {
                    held.push((s, e, m));
                    // Found where nobody was known to hold the page.
                    update(registry, model, (s, e), |h| match foreign {
                        Some(f) if h == Holders::NONE => h.with_foreign(f).held(m),
                        _ => h.held(m),
                    });
                }
                Step::Release(which) if !held.is_empty() => {
                    let (s, e, m) = held.swap_remove(which % held.len());
                    update(registry, model, (s, e), |h| h.released(m).settled());
                }
                Step::Release(_) => {}
                Step::Forget(s, e) => {
                    registry.forget(pages(s, e));
                    model[s as usize..e as usize].fill(Holders::NONE);
                }
                Step::Relocate(a, b, c, d) => {
                    registry.relocate(pages(a, b), pages(c, d));
                    relocate(model, (a, b), (c, d));
                }
            }
            check(&registry, &model);
        }
    }
}

#[test]
fn the_last_owner_leaves_a_foreign_lock_as_it_was_found() {
    let mut registry = Registry::new();
    let found = |h: Holders| h.with_foreign(Mode::OnFault).held(Mode::Full);
    registry.update(pages(0, 2), found);
    registry.update(pages(0, 1), |h| {
        h.with_process(Some(Mode::Full)).with_process(None)
    });
    let left = |page| registry.holders(PageNumber(page)).released(Mode::Full);
    assert_eq!(left(0).mode(), None, "the process has taken it over");
    assert_eq!(left(1).mode(), Some(Mode::OnFault));
    registry.update(pages(0, 2), |h| h.released(Mode::Full).settled());
    assert!(registry.is_empty() && registry.pages() == 0);
}

#[test]
fn two_owners_of_a_page_and_the_first_to_let_go_keeps_it() {
    let mut registry = Registry::new();
    registry.update(pages(0, 3), |h| h.held(Mode::OnFault));
    registry.update(pages(2, 5), |h| h.held(Mode::Full));
    assert_eq!(registry.holders(PageNumber(2)).mode(), Some(Mode::Full));
    registry.update(pages(2, 5), |h| h.released(Mode::Full));
    assert_eq!(registry.holders(PageNumber(2)).mode(), Some(Mode::OnFault));
    assert_eq!(registry.holders(PageNumber(3)).mode(), None);
    assert_eq!(registry.len(), 1);
}
