//! A compressed swap device for the peer: zram with LZ4, set up and taken down.
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{sysfs, undo};

fn is_swap(device: &Path) -> bool {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps
        .lines()
        .any(|line| line.split_whitespace().next() == device.to_str())
}

/// Runs a tool of util-linux.
fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(name)
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output();
    let output = output.map_err(|error| Error::new(error.kind(), format!("{name}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::other(format!(
        "{name} {}: {}",
        arguments.join(" "),
        said.trim()
    )))
}

/// A device nobody uses: an existing one without a size, or a new one.
fn free_device() -> Result<(u32, bool)> {
    for number in 0..16 {
        let attributes = format!("/sys/block/zram{number}");
        if Path::new(&attributes).exists() && sysfs::read(format!("{attributes}/disksize"))? == "0"
        {
            return Ok((number, false));
        }
    }
    let number = sysfs::read("/sys/class/zram-control/hot_add").map_err(|error| {
        Error::new(
            error.kind(),
            format!(
                "this kernel has no zram ({error}); try `modprobe zram`, \
            or a kernel with CONFIG_ZRAM"
            ),
        )
    })?;
    number
        .parse()
        .map(|number| (number, true))
        .map_err(Error::other)
}

/// Sets up a device of `bytes` with LZ4 as swap of the highest priority; returns its name, such as
/// zram0.
pub fn start(bytes: u64) -> Result<String> {
    let (number, added) = free_device()?;
    let device = PathBuf::from(format!("/dev/zram{number}"));
    let attributes = PathBuf::from(format!("/sys/block/zram{number}"));
    let (removed, reset) = (number.to_string(), attributes.clone());
    let before = sysfs::read(attributes.join("comp_algorithm"))?;
    let chosen = before
        .split_whitespace()
        .find_map(|name| name.strip_prefix('[')?.strip_suffix(']'));
    let algorithm = chosen.map(str::to_owned);
    undo::change(
        &format!("set up {}", device.display()),
        || {
            sysfs::write(attributes.join("comp_algorithm"), "lz4")?;
            sysfs::write(attributes.join("disksize"), bytes.to_string())
        },
        move || {
            sysfs::write(reset.join("reset"), "1")?;
            if added {
                return sysfs::write("/sys/class/zram-control/hot_remove", removed);
            }
            algorithm.map_or(Ok(()), |name| {
                sysfs::write(reset.join("comp_algorithm"), name)
            })
        },
    )?;
    swap_on(&device)?;
    Ok(format!("zram{number}"))
}

/// The most memory that the device of this name, such as zram0, has taken since
/// [`forget_most_used`].
pub fn most_used(name: &str) -> Result<u64> {
    let text = sysfs::read(format!("/sys/block/{name}/mm_stat"))?;
    let field = text.split_whitespace().nth(4);
    let bytes = field.and_then(|field| field.parse().ok());
    bytes.ok_or_else(|| Error::other(format!("mm_stat of {name} is `{text}`")))
}

/// Starts [`most_used`] anew.
pub fn forget_most_used(name: &str) -> Result<()> {
    sysfs::write(format!("/sys/block/{name}/mem_used_max"), "0")
}

/// Makes `device`, a device or a file, swap of the highest priority, until everything is undone.
pub fn swap_on(device: &Path) -> Result<()> {
    let swap = device.to_owned();
    undo::change(
        &format!("swap on {}", device.display()),
        || {
            let path = device.to_str().unwrap_or_default();
            tool("mkswap", &[path])?;
            tool("swapon", &["--priority", "32767", path])
        },
        move || swap_off(&swap),
    )
}

fn swap_off(device: &Path) -> Result<()> {
    // The processes that used it may take a moment to go.
    for attempt in 0.. {
        if !is_swap(device) {
            break;
        }
        match tool("swapoff", &[device.to_str().unwrap_or_default()]) {
            Err(error) if attempt == 20 => return Err(error),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    Ok(())
}

/// Sets how many pages the kernel reads ahead from swap (as a power of two), and puts the old value
/// back in the end.
pub fn set_page_cluster(value: u32) -> Result<()> {
    const PATH: &str = "/proc/sys/vm/page-cluster";
    let before = sysfs::read(PATH)?;
    undo::change(
        "vm.page-cluster",
        || sysfs::write(PATH, value.to_string()),
        move || sysfs::write(PATH, before),
    )
}
