//! `UFFDIO_API` feature bits (`linux/userfaultfd.h`), with the kernel release that brought each.
#![allow(missing_docs)]
pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0; // 5.7
pub const EVENT_FORK: u64 = 1 << 1; // 4.11
pub const EVENT_REMAP: u64 = 1 << 2; // 4.11
pub const EVENT_REMOVE: u64 = 1 << 3; // 4.11
pub const MISSING_HUGETLBFS: u64 = 1 << 4; // 4.11
pub const MISSING_SHMEM: u64 = 1 << 5; // 4.11
pub const EVENT_UNMAP: u64 = 1 << 6; // 4.11
pub const SIGBUS: u64 = 1 << 7; // 4.14
pub const THREAD_ID: u64 = 1 << 8; // 4.14
pub const MINOR_HUGETLBFS: u64 = 1 << 9; // 5.13
pub const MINOR_SHMEM: u64 = 1 << 10; // 5.14
pub const EXACT_ADDRESS: u64 = 1 << 11; // 5.18
pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12; // 5.19
pub const WP_UNPOPULATED: u64 = 1 << 13; // 6.4
pub const POISON: u64 = 1 << 14; // 6.6
pub const WP_ASYNC: u64 = 1 << 15; // 6.7
pub const MOVE: u64 = 1 << 16; // 6.8
pub const RWP: u64 = 1 << 17; // 7.3
pub const RWP_ASYNC: u64 = 1 << 18; // 7.3
