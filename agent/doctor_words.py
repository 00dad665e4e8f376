"""What `nebula-agent doctor` says: each code in English and Chinese, as (what is, what to do)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent.doctor_checks import Check

Words = tuple[str, str, str, str]  # English, what to do; Chinese, what to do

AREAS = {
    "config": ("configuration", "配置"),
    "agent": ("agent", "代理"),
    "isolation": ("jobs", "任务"),
    "plane": ("control plane", "控制面"),
    "clock": ("clock", "时钟"),
    "driver": ("driver", "驱动"),
    "xid": ("XIDs", "XID"),
    "card": ("card", "显卡"),
    "topology": ("topology", "拓扑"),
    "disk": ("disk", "磁盘"),
    "memory": ("memory", "内存"),
    "cgroups": ("cgroups", "cgroup"),
    "container": ("containers", "容器"),
    "rdma": ("RDMA", "RDMA"),
}
LEVELS = {"pass": ("PASS", "通过"), "warn": ("WARN", "警告"), "fail": ("FAIL", "失败")}

SAYS: dict[str, Words] = {
    "config_bad": ("{error}", "", "配置无法使用：{error}", ""),
    "config_none": (
        "This machine has not joined a control plane.",
        "Run `nebula-agent enroll`.",
        "本机尚未加入控制面。",
        "请运行 `nebula-agent enroll`。",
    ),
    "config_ok": ("Node {node} of {endpoint}.", "", "{endpoint} 的节点 {node}。", ""),
    "agent_running": ("The agent runs.", "", "代理正在运行。", ""),
    "agent_stopped": (
        "No agent runs on this machine.",
        "Start it: `systemctl start nebula-agent`, or `nebula-agent run`.",
        "本机没有运行代理。",
        "请启动：`systemctl start nebula-agent` 或 `nebula-agent run`。",
    ),
    "running_as_root": (
        "Jobs run as root on this machine, and nothing is closed to root.",
        'Update the agent, and set identity to "mapped" or "shared".',
        "本机的任务以 root 运行，对 root 没有任何隔离。",
        '请升级代理，并将 identity 设为 "mapped" 或 "shared"。',
    ),
    "isolation_root_same": (
        'No job can be launched: the agent is root with identity = "same", and no job runs as root.',
        'Run the agent as another user, or set identity to "mapped", or to "shared" with job_account.',
        '无法启动任务：代理以 root 运行且 identity = "same"，而任务不会以 root 运行。',
        '请以其他用户运行代理，或将 identity 设为 "mapped"，或设为 "shared" 并指定 job_account。',
    ),
    "isolation_not_root": (
        "No job can be launched: only an agent that runs as root can give jobs accounts of their own.",
        'Run the agent as root, or set identity to "same".',
        "无法启动任务：只有以 root 运行的代理才能让任务使用其他账户。",
        '请以 root 运行代理，或将 identity 设为 "same"。',
    ),
    "isolation_job_account_missing": (
        'No job can be launched: identity = "shared" needs job_account.',
        "Name the Unix account that all jobs run as.",
        '无法启动任务：identity = "shared" 需要 job_account。',
        "请指定所有任务使用的 Unix 账户。",
    ),
    "isolation_job_account_unknown": (
        "No job can be launched: there is no Unix account of the name in job_account.",
        "Make the account, or name another one.",
        "无法启动任务：job_account 指定的 Unix 账户不存在。",
        "请创建该账户或指定其他账户。",
    ),
    "isolation_job_account_system": (
        "No job can be launched: job_account is an account of the system.",
        "Name an account with a uid of at least 1000.",
        "无法启动任务：job_account 是系统账户。",
        "请指定 uid 不小于 1000 的账户。",
    ),
    "isolation_problem": (
        "No job can be launched: {problem}.",
        "See the agent's log.",
        "无法启动任务：{problem}。",
        "请查看代理日志。",
    ),
    "account_one": (
        "All jobs run as {account}; sandbox: {sandbox}.",
        "",
        "所有任务以 {account} 的身份运行；沙箱：{sandbox}。",
        "",
    ),
    "account_each": (
        "Each job runs as its owner's account; sandbox: {sandbox}.",
        "",
        "每个任务以其所有者的账户运行；沙箱：{sandbox}。",
        "",
    ),
    "open_nothing": (
        "Jobs reach neither the files of control plane and agent nor other jobs.",
        "",
        "任务无法访问控制面与代理的文件，也无法访问其他任务。",
        "",
    ),
    "open_control_files": (
        "A job can read and change the control plane's files: keys, database, the administrator's token.",
        'Give jobs an account of their own (identity = "shared" or "mapped"), or allow user namespaces.',
        "任务可以读取和修改控制面的文件：密钥、数据库、管理员令牌。",
        '请让任务使用自己的账户（identity = "shared" 或 "mapped"），或允许用户命名空间。',
    ),
    "open_agent_files": (
        "A job can read the agent's credential and store, and act as this node.",
        'Give jobs an account of their own (identity = "shared" or "mapped"), or allow user namespaces.',
        "任务可以读取代理的凭据与数据，并冒充本节点。",
        '请让任务使用自己的账户（identity = "shared" 或 "mapped"），或允许用户命名空间。',
    ),
    "open_other_jobs_files": (
        "A job can read and change the files and secrets of other jobs.",
        'Give each person an account (identity = "mapped"), or allow user namespaces.',
        "任务可以读取和修改其他任务的文件与机密。",
        '请为每人使用各自的账户（identity = "mapped"），或允许用户命名空间。',
    ),
    "open_processes": (
        "A job can read the memory and the environment of other jobs' processes.",
        'Give each person an account (identity = "mapped"), or allow user namespaces.',
        "任务可以读取其他任务进程的内存与环境变量。",
        '请为每人使用各自的账户（identity = "mapped"），或允许用户命名空间。',
    ),
    "open_signals": (
        "A job can stop and kill other jobs and the agent.",
        'Linux 6.12 closes this; or give each person an account (identity = "mapped").',
        "任务可以停止或终止其他任务和代理。",
        'Linux 6.12 起可避免；或为每人使用各自的账户（identity = "mapped"）。',
    ),
    "open_paths": (
        "A job sees names in closed folders, can change modes there and reach sockets.",
        "User namespaces would close this.",
        "任务可以看到受限目录中的名称、更改权限并连接其中的套接字。",
        "允许用户命名空间后可避免。",
    ),
    "open_home": (
        "Jobs share an account: its home, its ports and the limits of its processes are open to each of them.",
        "",
        "任务共用一个账户：其主目录、端口和进程限制对每个任务开放。",
        "",
    ),
    "open_other": ("A job can reach: {word}.", "", "任务可以访问：{word}。", ""),
    "exposed": (
        "{path} can't be hidden from jobs.",
        "Keep the agent's and the control plane's files in folders of their own.",
        "无法对任务隐藏 {path}。",
        "请将代理和控制面的文件放在专用目录中。",
    ),
    "sandbox_refused": (
        "A better sandbox does not work here ({text}).",
        "",
        "更强的沙箱在此不可用（{text}）。",
        "",
    ),
    "plane_unreachable": (
        "{error}.",
        "Check endpoint, network, proxy and certificate.",
        "无法连接控制面：{error}。",
        "请检查 endpoint、网络、代理服务器和证书。",
    ),
    "plane_ok": ("{endpoint} answers.", "", "{endpoint} 有响应。", ""),
    "clock_ok": ("It differs from the control plane's by {skew_s} s.", "", "与控制面的时钟相差 {skew_s} 秒。", ""),
    "clock_skew": (
        "It differs from the control plane's by {skew_s} s; at most {most_s:g} s are well.",
        "Set up NTP, for example with chrony.",
        "与控制面的时钟相差 {skew_s} 秒；不应超过 {most_s:g} 秒。",
        "请配置 NTP，例如 chrony。",
    ),
    "clock_unknown": ("The control plane did not tell the time.", "", "控制面没有给出时间。", ""),
    "no_driver": (
        "{count} {vendor} device(s) on the PCI bus, but no library of their driver.",
        "Install the driver of {vendor}, then look again.",
        "PCI 总线上有 {count} 个 {vendor} 设备，但没有其驱动的库。",
        "请安装 {vendor} 的驱动后重试。",
    ),
    "nouveau": (
        "The module nouveau holds {count} {vendor} card(s).",
        "Install NVIDIA's driver and blacklist nouveau, then reboot.",
        "nouveau 模块占用了 {count} 块 {vendor} 显卡。",
        "请安装 NVIDIA 驱动并禁用 nouveau，然后重启。",
    ),
    "no_cards": ("No GPU library was found: this machine takes CPU jobs.", "", "未找到任何 GPU 库：本机只接受 CPU 任务。", ""),
    "layer_silent": (
        "{backend} did not answer within {waited_s} s: the driver hangs.",
        "Look at `dmesg`; when the jobs have ended, reboot the node.",
        "{backend} 在 {waited_s} 秒内没有响应：驱动挂起。",
        "请查看 `dmesg`；任务结束后重启节点。",
    ),
    "layer_error": ("{backend}: {error}", "", "{backend}：{error}", ""),
    "layer_ok": ("{backend}: driver {version}, {count} card(s).", "", "{backend}：驱动 {version}，{count} 块卡。", ""),
    "driver_mismatch": (
        "The driver's library and the loaded kernel module differ in version: programs that start now fail.",
        "Let the jobs end, then reboot the node (or unload the module and load the new one).",
        "驱动库与已加载内核模块的版本不一致：新启动的程序会失败。",
        "请等任务结束后重启节点（或卸载旧模块并加载新模块）。",
    ),
    "kernel_log_ok": ("NVML and the kernel's log are listened to.", "", "正在监听 NVML 和内核日志。", ""),
    "kernel_log_hidden": (
        "This user may not read the kernel's log: a card that falls off the bus without an XID goes unseen there.",
        "Run the agent as root or give it CAP_SYSLOG.",
        "当前用户无权读取内核日志：没有 XID 的掉卡会看不到。",
        "请以 root 运行代理或授予 CAP_SYSLOG。",
    ),
    "wsl": (
        "This is WSL: use and processes of cards may not be told.",
        "For a lab's node run Linux itself.",
        "这是 WSL：显卡的利用率和进程可能无法得知。",
        "实验室节点请直接运行 Linux。",
    ),
    "card_error": (
        "{model} answers with the error {error}.",
        "Reset it (nvidia-smi -r) when it is idle; else reboot the node.",
        "{model} 报错：{error}。",
        "请在空闲时复位（nvidia-smi -r），否则重启节点。",
    ),
    "card_ok": ("{model}, {total_mib} MiB.", "", "{model}，{total_mib} MiB。", ""),
    "card_shared": (
        "{model} has no memory of its own: it is shown and takes no work.",
        "",
        "{model} 没有独立显存：仅显示，不接受任务。",
        "",
    ),
    "card_cut": (
        "{model} is cut into {parts} MIG part(s), which take the work.",
        "",
        "{model} 已切分为 {parts} 个 MIG 实例，由实例接受任务。",
        "",
    ),
    "memory_unknown": (
        "{model} does not tell its memory: it is shown and takes no work.",
        "In MIG mode, make parts of it (nvidia-smi mig -cgi … -C); else update the driver.",
        "{model} 没有给出显存大小：仅显示，不接受任务。",
        "MIG 模式下请创建实例（nvidia-smi mig -cgi … -C）；否则请更新驱动。",
    ),
    "remap_failed": (
        "The spare rows of its memory are used up.",
        "Have the card replaced.",
        "备用显存行已用完。",
        "请更换该卡。",
    ),
    "remap_pending": (
        "Bad memory waits for a reset to be taken out of use.",
        "Reset the card (nvidia-smi -r) when it is idle.",
        "有坏显存等待复位后停用。",
        "请在空闲时复位该卡（nvidia-smi -r）。",
    ),
    "ecc_uncorrected": (
        "{count} memory error(s) could not be corrected since the driver was loaded.",
        "Reset the card when it is idle; replace it if they come back.",
        "自驱动加载以来有 {count} 个无法纠正的显存错误。",
        "请在空闲时复位；若再次出现请更换。",
    ),
    "ecc_uncorrected_not": ("No uncorrected memory error on {count} card(s).", "", "{count} 块卡没有无法纠正的显存错误。", ""),
    "compute_mode": (
        "Its compute mode is {mode}: jobs can't share it.",
        "nvidia-smi -c DEFAULT",
        "计算模式为 {mode}：任务无法共享。",
        "nvidia-smi -c DEFAULT",
    ),
    "wddm": (
        "It is driven as a display (WDDM): the memory of programs is not told, and long kernels are interrupted.",
        "Take displays off it; data-centre and workstation cards: nvidia-smi -dm 1 switches to TCC.",
        "以显示模式（WDDM）驱动：无法得知各程序的显存，长时间的内核会被打断。",
        "请勿在该卡上接显示器；数据中心卡与工作站卡可用 nvidia-smi -dm 1 切换到 TCC。",
    ),
    "persistence_off": (
        "Persistence mode is off: each start initialises the driver anew.",
        "nvidia-smi -pm 1, or run nvidia-persistenced.",
        "持久模式未开启：每次启动都要重新初始化驱动。",
        "nvidia-smi -pm 1，或运行 nvidia-persistenced。",
    ),
    "persistence_off_not": ("Persistence mode is on for {count} card(s).", "", "{count} 块卡已开启持久模式。", ""),
    "pcie_narrow": (
        "Its link has {width} of {most} lanes.",
        "Check its seat, riser and slot.",
        "链路只有 {width} 条通道，上限 {most} 条。",
        "请检查插接、转接线和插槽。",
    ),
    "pcie_narrow_not": ("The link of {count} card(s) has all its lanes.", "", "{count} 块卡的链路通道完整。", ""),
    "bar1_small": (
        "The host reaches {bar1_mib} of {total_mib} MiB at once: Resizable BAR is off.",
        "Switch on Resizable BAR and Above 4G Decoding in the firmware setup.",
        "主机一次只能访问 {total_mib} MiB 中的 {bar1_mib} MiB：Resizable BAR 未启用。",
        "请在固件设置中打开 Resizable BAR 和 Above 4G Decoding。",
    ),
    "bar1_small_not": ("Resizable BAR is on for {count} card(s).", "", "{count} 块卡已启用 Resizable BAR。", ""),
    "nvlink_down": (
        "{up} of {of} NVLinks are up.",
        "Check the bridge or reseat the card.",
        "{of} 条 NVLink 中有 {up} 条连通。",
        "请检查桥接器或重新插卡。",
    ),
    "power_limited": (
        "Its power limit is {limit_w} W; the default is {default_w} W.",
        "If that is not meant: nvidia-smi -pl {default_w}.",
        "功耗上限为 {limit_w} W；默认值为 {default_w} W。",
        "若非有意：nvidia-smi -pl {default_w}。",
    ),
    "card_hot": (
        "{temp_c} °C; from {slow_c} °C on it slows itself down.",
        "Check fans, dust and the room's air.",
        "{temp_c} °C；达到 {slow_c} °C 会自动降频。",
        "请检查风扇、灰尘和机房通风。",
    ),
    "card_throttled": (
        "It is slowed down now: {reasons}.",
        "Check cooling and power supply.",
        "当前被降频：{reasons}。",
        "请检查散热和供电。",
    ),
    "mem_clock_low": (
        "The memory runs at {now_mhz} of {most_mhz} MHz at {util_pct} % use: its clock is locked low.",
        "nvidia-smi -pm 1, then nvidia-smi -rmc.",
        "利用率 {util_pct} % 时显存频率为 {now_mhz} MHz（最高 {most_mhz} MHz）：频率被锁低。",
        "nvidia-smi -pm 1，然后 nvidia-smi -rmc。",
    ),
    "core_clock_low": (
        "The core runs at {now_mhz} of {most_mhz} MHz at {util_pct} % use.",
        "Check temperature, power limit and locked clocks (nvidia-smi -rgc).",
        "利用率 {util_pct} % 时核心频率为 {now_mhz} MHz（最高 {most_mhz} MHz）。",
        "请检查温度、功耗上限和锁定的频率（nvidia-smi -rgc）。",
    ),
    "topology_unknown": (
        "How near the {count} cards are is not told: cards that are close to each other are not preferred.",
        "",
        "{count} 块卡之间的远近未知：无法优先选择相近的卡。",
        "",
    ),
    "disk_full": (
        "{path} has {free_mib} MiB left of {total_mib}: outputs can't be kept.",
        "Make room, or set data_dir to another disk.",
        "{path} 剩余 {free_mib} MiB（共 {total_mib}）：无法保存输出。",
        "请清理空间，或将 data_dir 设到其他磁盘。",
    ),
    "disk_low": (
        "{path} has {free_mib} MiB left of {total_mib}.",
        "Make room soon.",
        "{path} 剩余 {free_mib} MiB（共 {total_mib}）。",
        "请尽快清理空间。",
    ),
    "disk_ok": ("{path} has {free_mib} MiB left of {total_mib}.", "", "{path} 剩余 {free_mib} MiB（共 {total_mib}）。", ""),
    "inodes_low": (
        "{path} has {free_pct} % of its inodes left.",
        "Remove small files.",
        "{path} 的 inode 剩余 {free_pct} %。",
        "请删除小文件。",
    ),
    "shm_small": (
        "Shared memory (/dev/shm) has {shm_mib} MiB: data loaders with worker processes may fail with a bus error.",
        "Mount it larger, half of the memory is usual.",
        "共享内存（/dev/shm）只有 {shm_mib} MiB：多进程数据加载可能报总线错误。",
        "请加大挂载，通常为内存的一半。",
    ),
    "shm_ok": ("Shared memory (/dev/shm) has {shm_mib} MiB.", "", "共享内存（/dev/shm）有 {shm_mib} MiB。", ""),
    "no_cgroup": (
        "No cgroup can be made here by this user: jobs are held together by their session, and memory limits do not hold.",
        "Run the agent as a systemd service with Delegate=yes, or as root.",
        "当前用户无法创建 cgroup：任务只能靠会话聚合，内存限制不起作用。",
        "请将代理作为带 Delegate=yes 的 systemd 服务运行，或以 root 运行。",
    ),
    "cgroup_ok": ("{note}.", "", "{note}。", ""),
    "limits_ok": (
        "Memory, processors and processes of each job are limited.",
        "",
        "每个任务的内存、处理器和进程数都受限制。",
        "",
    ),
    "limit_memory_off": (
        "The memory of jobs is not limited: one job can use all of the host's.",
        "Run the agent as the systemd service that comes with it (Delegate=yes, DelegateSubgroup=agent; systemd 254 or later).",
        "任务的内存不受限制：一个任务可以用尽主机的全部内存。",
        "请以自带的 systemd 服务运行代理（Delegate=yes、DelegateSubgroup=agent；systemd 254 或更高版本）。",
    ),
    "limit_cpu_off": (
        "Processors are not shared by what jobs asked for.",
        "Run the agent as the systemd service that comes with it (Delegate=yes, DelegateSubgroup=agent; systemd 254 or later).",
        "处理器未按任务的申请量分配。",
        "请以自带的 systemd 服务运行代理（Delegate=yes、DelegateSubgroup=agent；systemd 254 或更高版本）。",
    ),
    "limit_pids_off": (
        "The number of a job's processes is not limited.",
        "Run the agent as the systemd service that comes with it (Delegate=yes, DelegateSubgroup=agent; systemd 254 or later).",
        "任务的进程数不受限制。",
        "请以自带的 systemd 服务运行代理（Delegate=yes、DelegateSubgroup=agent；systemd 254 或更高版本）。",
    ),
    "limit_devices_off": (
        "The device files of other jobs' cards can't be closed here (that needs cgroup v1's devices controller).",
        "",
        "此处无法关闭其他任务的卡的设备文件（需要 cgroup v1 的 devices 控制器）。",
        "",
    ),
    "container_none": (
        "No container runtime was found: jobs that name an image are refused here.",
        "Install podman or docker if they are wanted.",
        "未找到容器运行时：指定镜像的任务会被拒绝。",
        "如需要请安装 podman 或 docker。",
    ),
    "container_no_gpu": (
        "{tool} is there, but not NVIDIA's container toolkit: containers see no card.",
        "Install nvidia-container-toolkit and run `nvidia-ctk cdi generate`.",
        "有 {tool}，但没有 NVIDIA 容器工具包：容器看不到显卡。",
        "请安装 nvidia-container-toolkit 并运行 `nvidia-ctk cdi generate`。",
    ),
    "container_ok": ("{tool} is there.", "", "已安装 {tool}。", ""),
    "rdma_ok": ("{active} of {count} port(s) are active: {ports}.", "", "{count} 个端口中 {active} 个已激活：{ports}。", ""),
    "rdma_down": (
        "0 of {count} port(s) are active.",
        "Check cables and the subnet manager.",
        "{count} 个端口均未激活。",
        "请检查线缆和子网管理器。",
    ),
    "memlock_low": (
        "This user may lock {memlock_mib} MiB of memory only: RDMA needs more.",
        "Set LimitMEMLOCK=infinity in the service, or memlock in limits.conf.",
        "当前用户只能锁定 {memlock_mib} MiB 内存：RDMA 需要更多。",
        "请在服务中设置 LimitMEMLOCK=infinity，或在 limits.conf 中设置 memlock。",
    ),
}


def speaks_chinese(env: Mapping[str, str] = os.environ) -> bool:
    found = next((env[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if env.get(name)), "")
    return found.lower().startswith("zh")


def said(check: Check, *, chinese: bool = False) -> tuple[str, str]:
    """(what is, what to do or "")."""
    words = SAYS[check.code]
    what, todo = words[2:] if chinese else words[:2]
    params = {name: _plain(value) for name, value in check.params.items()}
    return what.format(**params).replace("..", "."), todo.format(**params)


def _plain(value: object) -> object:
    """Names come from drivers and files: nothing of them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in value) if isinstance(value, str) else value


def line(check: Check, *, chinese: bool = False) -> str:
    """``WARN  card 1        Its link has 8 of 16 lanes.  → Check …``"""
    what, todo = said(check, chinese=chinese)
    area = AREAS[check.area][chinese]
    if check.gpu is not None:
        area = f"{area} {check.gpu}"
    level = LEVELS[check.level][chinese]
    return f"{level:<5} {area:<14} {what}{f'  → {todo}' if todo else ''}"
