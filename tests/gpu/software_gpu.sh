#!/usr/bin/env bash
# software_gpu.sh COMMAND...: run a command on a machine without a GPU as if it had one.
# onnxruntime looks for GPUs in /sys/class/drm, so the command gets a mount namespace with a card
# there. SwiftShader, Chromium's Vulkan device, then computes on the CPU, or Mesa's lavapipe where that
# is missing (25 works, 22 does not). Needs root, and on Debian: make software-gpu
set -euo pipefail
if [ -z "${VK_ICD_FILENAMES:-}" ]; then
    VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json
    for icd in "$VK_ICD_FILENAMES" /usr/share/vulkan/icd.d/lvp_icd*.json; do
        if [ -f "$icd" ]; then VK_ICD_FILENAMES=$icd; break; fi
    done
fi
export VK_ICD_FILENAMES
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}
[ -f "$VK_ICD_FILENAMES" ] || { echo "no Vulkan device: $VK_ICD_FILENAMES is missing" >&2; exit 77; }
unshare --mount true 2>/dev/null || { echo "no permission to make a mount namespace" >&2; exit 77; }
exec unshare --mount bash -euc '
    card=/sys/class/drm/card0/device
    mount -t tmpfs none /sys/class
    mkdir -p $card
    echo 0x1002 >$card/vendor
    echo 0x0000 >$card/device
    echo 0x030000 >$card/class
    echo 0 >$card/boot_vga
    exec "$@"' software_gpu "$@"
