"""Whether Firecracker itself can run a guest on this machine, and if not, what is not there."""
import fcntl
import os
import shutil

KVM = "/dev/kvm"
# _IO(0xAE, 0x01) of linux/kvm.h.
KVM_CREATE_VM = 0xAE01


def missing(kvm=KVM):
    """Why Firecracker itself is not run; each of what it needs is asked for in turn."""
    try:
        device = os.open(kvm, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{kvm} cannot be opened ({error.strerror})"
    try:
        os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
    except OSError as error:
        return f"{kvm} makes no virtual machine: KVM_CREATE_VM: {error.strerror}"
    finally:
        os.close(device)
    named = os.environ.get("PAGETIDE_FIRECRACKER")
    if named and not shutil.which(named):
        return f"PAGETIDE_FIRECRACKER={named} is no executable"
    if not (named or shutil.which("firecracker")):
        return f"{kvm} makes virtual machines, but there is no firecracker on PATH, and " \
            "PAGETIDE_FIRECRACKER names none"
    return "it is there, but no test here restores a guest with it yet"
