//! The messages in CRIU's images, as far as they are needed: its own names and numbers.

/// `pstree_entry`: a task.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PstreeEntry {
    #[prost(uint32, optional, tag = "1")]
    pub pid: Option<u32>,
}

/// `mm_entry`: an address space.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MmEntry {
    #[prost(message, repeated, tag = "14")]
    pub vmas: Vec<VmaEntry>,
}

/// `vma_entry`: a mapping; addresses in bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VmaEntry {
    #[prost(uint64, optional, tag = "1")]
    pub start: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub end: Option<u64>,
}

/// `pagemap_head`: which `pages-N.img` has the pages.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PagemapHead {
    #[prost(uint32, optional, tag = "1")]
    pub pages_id: Option<u32>,
}

/// `pagemap_entry`: pages that follow each other.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PagemapEntry {
    #[prost(uint64, optional, tag = "1")]
    pub vaddr: Option<u64>,
    /// Up to CRIU 4.1 this is how many pages.
    #[prost(uint32, optional, tag = "2")]
    pub compat_nr_pages: Option<u32>,
    #[prost(bool, optional, tag = "3")]
    pub in_parent: Option<bool>,
    #[prost(uint32, optional, tag = "4")]
    pub flags: Option<u32>,
    /// From CRIU 4.2 on this is.
    #[prost(uint64, optional, tag = "5")]
    pub nr_pages: Option<u64>,
}

/// Flags of a [`PagemapEntry`].
pub(super) const PARENT: u32 = 1;
pub(super) const LAZY: u32 = 2;
pub(super) const PRESENT: u32 = 4;
