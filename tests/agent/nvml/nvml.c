/* A small libnvidia-ml.so.1 for tests: it answers pynvml's calls from the text file that NEBULA_NVML_STATE names, which is
   looked at at every call, so a test changes the machine by writing the file.

     driver 570.1                    init 18                     nvmlInit fails with that code
     gpu <i> <key> <value>           keys: see below; a key that is absent is NOT_SUPPORTED
     busy <i> <pid> <sm %> <time>    its use at that time (us); none of a card at all: NOT_SUPPORTED
     proc <i> <pid> <bytes|na>       a compute process           gfx <i> <pid> <bytes|na>   a graphics process
     topo <i> <j> <level>            common ancestor             nvlink <i> <link> <pci id of the other end | down>
     mig <i> <n> <uuid> <total> <used> <gi> <ci> <profile>      part n of card i
     migproc <i> <n> <pid> <bytes>   a process on it             migxid <seq> <i> <code> <gi> <ci>   an event of it
     xid <seq> <i> <code>            an event, once per seq      fail <i|-1> <function|*> <code>
     hang <function> <ms>            */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *dev;
enum { OK = 0, UNINIT = 1, EINVAL_ = 2, NOTSUP = 3, INSUF = 7, NODRIVER = 9, TIMEOUT_ = 10, VERSION = 25 };

/* A card is handles + 1 + i, part n of card i is parts + 8 * i + n. */
static char handles[64], parts[256], event_set[1];
static int inited, last_xid;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* --- the state file ------------------------------------------------------------------------------------------ */

struct lines { int n; char *at[4096], word[4096][8]; };

/* The file's lines; read again only when it is another file (tests replace it). What was read before is not freed: another
   thread may be in it. */
static struct lines *load(void) {
    static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
    static struct stat last;
    static struct lines *lines;
    const char *path = getenv("NEBULA_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return NULL;
    pthread_mutex_lock(&reading);
    if (!lines || now.st_ino != last.st_ino || now.st_dev != last.st_dev || memcmp(&now.st_mtim, &last.st_mtim, sizeof now.st_mtim)) {
        FILE *f = fopen(path, "r");
        if (f) {
            char *text = calloc(1, 65536), *save;
            struct lines *new = calloc(1, sizeof *new);
            text[fread(text, 1, 65534, f)] = '\n';
            fclose(f);
            for (char *l = strtok_r(text, "\n", &save); l && new->n < 4096; l = strtok_r(NULL, "\n", &save), new->n++) {
                new->at[new->n] = l;
                sscanf(l, "%7s", new->word[new->n]);
            }
            lines = new;
            last = now;
        }
    }
    struct lines *found = lines;
    pthread_mutex_unlock(&reading);
    return found;
}

/* Each line that begins with one of the words (separated by blanks). */
static int each(const char *words, int (*line_cb)(char *, void *), void *arg) {
    struct lines *lines = load();
    int r = 0;
    for (int i = 0; lines && i < lines->n; i++) {
        const char *found = strstr(words, lines->word[i]);
        size_t n = strlen(lines->word[i]);
        if (found && n && (found == words || found[-1] == ' ') && (!found[n] || found[n] == ' ') && (r = line_cb(lines->at[i], arg))) break;
    }
    return r;
}

struct want { int gpu; const char *key; char *out; size_t size; int hit; };
static int cb_get(char *l, void *arg) {
    struct want *w = arg;
    char *rest;
    size_t n = strlen(w->key);
    if (strtol(l + 4, &rest, 10) != w->gpu || strncmp(++rest, w->key, n) || rest[n] != ' ') return 0;
    snprintf(w->out, w->size, "%s", rest + n + 1);
    return w->hit = 1;
}
static int get(int gpu, const char *key, char *out, size_t size) {
    struct want w = {gpu, key, out, size, 0};
    each("gpu", cb_get, &w);
    return w.hit;
}
static int cb_count(char *l, void *arg) {
    int i, *max = arg;
    if (sscanf(l, "gpu %d", &i) == 1 && i + 1 > *max) *max = i + 1;
    return 0;
}
static int count(void) { int n = 0; each("gpu", cb_count, &n); return n; }

struct trouble { int gpu; const char *fn; int code, ms; };
static int cb_trouble(char *l, void *arg) {
    struct trouble *t = arg;
    int i, n;
    char fn[80];
    if (sscanf(l, "fail %d %79s %d", &i, fn, &n) == 3 && i == t->gpu && (!strcmp(fn, "*") || !strcmp(fn, t->fn))) t->code = n;
    if (sscanf(l, "hang %79s %d", fn, &n) == 2 && !strcmp(fn, t->fn)) t->ms = n;
    return 0;
}
static int part_of(dev d) { long at = (char *)d - parts; return at >= 0 && at < (long)sizeof parts ? (int)at : -1; }
static int index_of(dev d) { return part_of(d) >= 0 ? part_of(d) / 8 : (int)((char *)d - handles) - 1; }

struct mig { int gpu, number, gi, ci, hit; u64 total, used; char uuid[80], profile[32]; };
static int cb_mig(char *l, void *arg) {
    struct mig *m = arg, f;
    if (sscanf(l, "mig %d %d %79s %llu %llu %d %d %31s", &f.gpu, &f.number, f.uuid, &f.total, &f.used, &f.gi, &f.ci, f.profile) == 8
        && f.gpu == m->gpu && f.number == m->number) { *m = f; m->hit = 1; return 1; }
    return 0;
}
static int mig_of(dev d, struct mig *m) {
    m->gpu = part_of(d) / 8; m->number = part_of(d) % 8; m->hit = 0;
    if (part_of(d) >= 0) each("mig", cb_mig, m);
    return part_of(d) >= 0 && m->hit;
}
static int before(dev d, const char *fn) {
    struct trouble t = {d ? index_of(d) : -1, fn, 0, 0};
    if (!inited) return UNINIT;
    each("fail hang", cb_trouble, &t);
    if (t.ms) usleep((u32)t.ms * 1000);
    return t.code;
}
static int number(dev d, const char *fn, const char *key, u64 *out) {
    char text[128];
    struct mig m;
    int r = before(d, fn);
    if (r) return r;
    if (part_of(d) >= 0) {
        if (!mig_of(d, &m)) return NOTSUP;
        if (!strcmp(key, "total")) *out = m.total;
        else if (!strcmp(key, "used")) *out = m.used;
        else if (!strcmp(key, "gi")) *out = (u64)m.gi;
        else if (!strcmp(key, "ci")) *out = (u64)m.ci;
        else return NOTSUP;
        return OK;
    }
    if (!get(index_of(d), key, text, sizeof text)) return NOTSUP;
    *out = strtoull(text, 0, 0);
    return OK;
}

/* --- the library --------------------------------------------------------------------------------------------- */

static int cb_init(char *l, void *arg) { return sscanf(l, "init %d", (int *)arg) == 1; }
API int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    int code = 0;
    if (!load()) return NODRIVER;
    each("init", cb_init, &code);
    if (!code) inited = 1;
    return code;
}
API int nvmlShutdown(void) { inited = 0; return OK; }
API const char *nvmlErrorString(int r) { (void)r; return "made up"; }

static int cb_driver(char *l, void *arg) { return sscanf(l, "driver %79s", (char *)arg) == 1; }
API int nvmlSystemGetDriverVersion(char *out, u32 n) {
    char text[80] = "";
    int r = before(0, "nvmlSystemGetDriverVersion");
    if (r) return r;
    each("driver", cb_driver, text);
    snprintf(out, n, "%s", text);
    return *text ? OK : NOTSUP;
}
API int nvmlSystemGetCudaDriverVersion(int *v) { *v = 12080; return before(0, "nvmlSystemGetCudaDriverVersion"); }
API int nvmlDeviceGetCount_v2(u32 *n) { int r = before(0, "nvmlDeviceGetCount_v2"); if (!r) *n = (u32)count(); return r; }
API int nvmlDeviceGetHandleByIndex_v2(u32 i, dev *d) {
    if ((int)i >= count()) return EINVAL_;
    *d = handles + 1 + i;
    return before(*d, "nvmlDeviceGetHandleByIndex_v2");
}

#define TEXT(fn, key) API int fn(dev d, char *out, u32 n) { int r = before(d, #fn); return r ? r : get(index_of(d), key, out, n) ? OK : NOTSUP; }
#define NUMBER(fn, key) API int fn(dev d, u32 *out) { u64 v; int r = number(d, #fn, key, &v); if (!r) *out = (u32)v; return r; }
API int nvmlDeviceGetName(dev d, char *out, u32 n) {
    char text[96];
    struct mig m;
    int r = before(d, "nvmlDeviceGetName");
    if (r) return r;
    if (!get(index_of(d), "name", text, sizeof text)) return NOTSUP;
    if (mig_of(d, &m)) snprintf(out, n, "%s MIG %s", text, m.profile);
    else snprintf(out, n, "%s", text);
    return OK;
}
API int nvmlDeviceGetUUID(dev d, char *out, u32 n) {
    struct mig m;
    int r = before(d, "nvmlDeviceGetUUID");
    if (r) return r;
    if (mig_of(d, &m)) { snprintf(out, n, "%s", m.uuid); return OK; }
    return get(index_of(d), "uuid", out, n) ? OK : NOTSUP;
}
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetNumaNodeId, "numa")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen_now")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width_now")
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "default_mw")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
NUMBER(nvmlDeviceGetGpuInstanceId, "gi")
NUMBER(nvmlDeviceGetComputeInstanceId, "ci")
#define BIG_NUMBER(fn, key) API int fn(dev d, u64 *out) { return number(d, #fn, key, out); }
BIG_NUMBER(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
BIG_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
BIG_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "old_reasons")
API int nvmlDeviceGetMaxClockInfo(dev d, u32 type, u32 *out) {
    u64 v;
    int r = number(d, "nvmlDeviceGetMaxClockInfo", type == 2 ? "max_mem" : "max_sm", &v);
    if (!r) *out = (u32)v;
    return r;
}
API int nvmlDeviceGetTemperatureThreshold(dev d, u32 kind, u32 *out) {
    u64 v;
    int r = number(d, "nvmlDeviceGetTemperatureThreshold", kind == 1 ? "slow_c" : "off_c", &v);
    if (!r) *out = (u32)v;
    return r;
}
API int nvmlDeviceGetBAR1MemoryInfo(dev d, u64 *o) { u64 v; int r = number(d, "nvmlDeviceGetBAR1MemoryInfo", "bar1", &v); if (!r) o[0] = v; return r; }
API int nvmlDeviceGetDriverModel_v2(dev d, u32 *now, u32 *next) { u64 v; int r = number(d, "nvmlDeviceGetDriverModel_v2", "driver_model", &v); if (!r) *now = *next = (u32)v; return r; }
API int nvmlDeviceGetEccMode(dev d, u32 *now, u32 *next) { u64 v; int r = number(d, "nvmlDeviceGetEccMode", "ecc", &v); if (!r) *now = *next = (u32)v; return r; }
API int nvmlDeviceGetTotalEccErrors(dev d, u32 kind, u32 counter, u64 *out) {
    return number(d, "nvmlDeviceGetTotalEccErrors", counter ? "ecc_life" : kind ? "ecc_double" : "ecc_single", out);
}
API int nvmlDeviceGetRemappedRows(dev d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    char text[64];
    int r = before(d, "nvmlDeviceGetRemappedRows");
    if (r) return r;
    if (!get(index_of(d), "rows", text, sizeof text)) return NOTSUP;
    return sscanf(text, "%u,%u,%u,%u", corrected, uncorrected, pending, failed) == 4 ? OK : NOTSUP;
}
API int nvmlDeviceGetRetiredPages(dev d, u32 cause, u32 *n, u64 *pages) {
    u64 have;
    int r = number(d, "nvmlDeviceGetRetiredPages", cause ? "retired_double" : "retired_single", &have);
    if (r) return r;
    r = pages && *n >= have ? OK : have ? INSUF : OK;
    *n = (u32)have;
    return r;
}
API int nvmlDeviceGetMigMode(dev d, u32 *now, u32 *next) { u64 v; int r = number(d, "nvmlDeviceGetMigMode", "mig_mode", &v); if (!r) *now = *next = (u32)v; return r; }
API int nvmlDeviceGetMaxMigDeviceCount(dev d, u32 *n) { int r = before(d, "nvmlDeviceGetMaxMigDeviceCount"); if (!r) *n = 7; return r; }
API int nvmlDeviceGetMigDeviceHandleByIndex(dev d, u32 n, dev *out) {
    struct mig m;
    int r = before(d, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (r) return r;
    *out = parts + 8 * index_of(d) + n;
    return mig_of(*out, &m) ? OK : 6;
}

API int nvmlDeviceGetTemperature(dev d, u32 sensor, u32 *out) {
    u64 v; (void)sensor;
    int r = number(d, "nvmlDeviceGetTemperature", "temp", &v);
    if (!r) *out = (u32)v;
    return r;
}
API int nvmlDeviceGetTemperatureV(dev d, u32 *s) { u64 v; int r = number(d, "nvmlDeviceGetTemperatureV", "temp_v", &v); if (!r) s[2] = (u32)v; return r; }
API int nvmlDeviceGetClockInfo(dev d, u32 type, u32 *out) {
    static const char *keys[] = {"clk_gfx", "clk_sm", "clk_mem", "clk_vid"};
    u64 v;
    int r = number(d, "nvmlDeviceGetClockInfo", keys[type & 3], &v);
    if (!r) *out = (u32)v;
    return r;
}
API int nvmlDeviceGetUtilizationRates(dev d, u32 *out) {
    u64 gpu, memory = 0;
    int r = number(d, "nvmlDeviceGetUtilizationRates", "util", &gpu);
    if (r) return r;
    number(d, "", "mem_util", &memory);
    out[0] = (u32)gpu; out[1] = (u32)memory;
    return OK;
}
/* GPM: a sample keeps what the card's `tensor` was when it was taken; between two of them it is the later one's. */
struct gpm_metric { u32 id; int ret; double value; char *words[3]; };
struct gpm_get { u32 version, n; double *before, *after; struct gpm_metric metric[1]; };
static int samples;
API int nvmlGpmQueryDeviceSupport(dev d, u32 *s) {
    u64 v;
    if (s[0] != 1) return VERSION;
    int r = number(d, "nvmlGpmQueryDeviceSupport", "tensor", &v);
    s[1] = !r;
    return r == NOTSUP ? OK : r;
}
API int nvmlGpmSampleAlloc(double **s) { *s = calloc(1, sizeof **s); samples++; return OK; }
API int nvmlGpmSampleFree(double *s) { free(s); samples--; return OK; }
API int nebula_samples(void) { return samples; }
API int nvmlGpmSampleGet(dev d, double *s) {
    u64 v;
    int r = number(d, "nvmlGpmSampleGet", "tensor", &v);
    if (!r) *s = (double)v;
    return r;
}
API int nvmlGpmMetricsGet(struct gpm_get *g) {
    if (g->version != 1) return VERSION;
    if (g->n != 1 || !g->before || !g->after) return EINVAL_;
    g->metric[0].ret = g->metric[0].id == 5 ? OK : NOTSUP;
    g->metric[0].value = *g->after;
    return OK;
}
/* As the driver: version 1 counts the reserved part as used, version 2 shows it apart. */
API int nvmlDeviceGetMemoryInfo(dev d, u64 *o) {
    u64 total, used, reserved = 0;
    int r = number(d, "nvmlDeviceGetMemoryInfo", "total", &total);
    if (r || (r = number(d, "nvmlDeviceGetMemoryInfo", "used", &used))) return r;
    number(d, "", "reserved", &reserved);
    o[0] = total; o[1] = total - used - reserved; o[2] = used + reserved;
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(dev d, u64 *o) {
    u64 total, used, reserved = 0;
    if ((u32)o[0] != 0x02000028) return VERSION;
    int r = number(d, "nvmlDeviceGetMemoryInfo_v2", "total", &total);
    if (r || (r = number(d, "nvmlDeviceGetMemoryInfo_v2", "used", &used))) return r;
    number(d, "", "reserved", &reserved);
    o[1] = total; o[2] = reserved; o[3] = total - used - reserved; o[4] = used;
    return OK;
}
API int nvmlDeviceGetCudaComputeCapability(dev d, int *major, int *minor) {
    char text[32];
    int r = before(d, "nvmlDeviceGetCudaComputeCapability");
    if (r) return r;
    return get(index_of(d), "cc", text, sizeof text) && sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOTSUP;
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char id32[32]; };
static void pci_fill(struct pci *p, const char *text) {
    memset(p, 0, sizeof *p);
    sscanf(text, "%x:%x:%x", &p->domain, &p->bus, &p->device);
    snprintf(p->id32, sizeof p->id32, "%08X:%02X:%02X.0", p->domain, p->bus, p->device);
    snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus, p->device);
}
API int nvmlDeviceGetPciInfo_v3(dev d, struct pci *p) {
    char text[64];
    int r = before(d, "nvmlDeviceGetPciInfo_v3");
    if (r) return r;
    if (!get(index_of(d), "pci", text, sizeof text)) return NOTSUP;
    pci_fill(p, text);
    return OK;
}

struct link { int gpu; u32 link; char *out; };
static int cb_link(char *l, void *arg) {
    struct link *w = arg;
    int i; u32 n; char text[64];
    if (sscanf(l, "nvlink %d %u %63s", &i, &n, text) == 3 && i == w->gpu && n == w->link) { strcpy(w->out, text); return 1; }
    return 0;
}
API int nvmlDeviceGetNvLinkState(dev d, u32 link, u32 *on) {
    char text[64];
    struct link w = {index_of(d), link, text};
    int r = before(d, "nvmlDeviceGetNvLinkState");
    if (r) return r;
    if (!each("nvlink", cb_link, &w)) return EINVAL_;  /* the card has no such link */
    *on = strcmp(text, "down") != 0;
    return OK;
}
API int nvmlDeviceGetNvLinkErrorCounter(dev d, u32 link, u32 counter, u64 *out) {
    static const char *keys[] = {"link_replays", "link_recoveries", "link_flits", "link_crcs"};
    (void)link;
    return number(d, "nvmlDeviceGetNvLinkErrorCounter", keys[counter & 3], out);
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev d, u32 link, struct pci *p) {
    char text[64];
    struct link w = {index_of(d), link, text};
    int r = before(d, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    if (r) return r;
    if (!each("nvlink", cb_link, &w)) return EINVAL_;
    pci_fill(p, text);
    return OK;
}

struct topo { int a, b, level; };
static int cb_topo(char *l, void *arg) {
    struct topo *t = arg;
    int a, b, v;
    if (sscanf(l, "topo %d %d %d", &a, &b, &v) == 3 && ((a == t->a && b == t->b) || (a == t->b && b == t->a))) { t->level = v; return 1; }
    return 0;
}
API int nvmlDeviceGetTopologyCommonAncestor(dev a, dev b, u32 *out) {
    struct topo t = {index_of(a), index_of(b), -1};
    int r = before(a, "nvmlDeviceGetTopologyCommonAncestor");
    if (r) return r;
    each("topo", cb_topo, &t);
    if (t.level < 0) return NOTSUP;
    *out = (u32)t.level;
    return OK;
}

struct proc { u32 pid; u64 used; u32 gi, ci; };
struct list { int gpu; const char *form; u32 n, room; struct proc *out; };
static int cb_proc(char *l, void *arg) {
    struct list *q = arg;
    int i; u32 pid; char used[32];
    if (sscanf(l, q->form, &i, &pid, used) == 3 && i == q->gpu) {
        if (q->out && q->n < q->room) q->out[q->n] = (struct proc){pid, strcmp(used, "na") ? strtoull(used, 0, 0) : ~0ull, ~0u, ~0u};
        q->n++;
    }
    return 0;
}
static int processes(dev d, const char *fn, const char *form, u32 *n, struct proc *out) {
    char mine[40];
    int r = before(d, fn);
    if (r) return r;
    if (part_of(d) >= 0) {
        snprintf(mine, sizeof mine, "migproc %%d %d %%u %%31s", part_of(d) % 8);
        form = *form == 'p' ? mine : "none";
    }
    struct list q = {index_of(d), form, 0, out ? *n : 0, out};
    each("proc gfx migproc", cb_proc, &q);
    r = q.n && (!out || *n < q.n) ? INSUF : OK;
    *n = q.n;
    return r;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(dev d, u32 *n, struct proc *out) { return processes(d, "nvmlDeviceGetComputeRunningProcesses_v3", "proc %d %u %31s", n, out); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(dev d, u32 *n, struct proc *out) { return processes(d, "nvmlDeviceGetGraphicsRunningProcesses_v3", "gfx %d %u %31s", n, out); }
API int nvmlDeviceGetComputeRunningProcesses_v2(dev d, u32 *n, struct proc *out) { return processes(d, "nvmlDeviceGetComputeRunningProcesses_v2", "proc %d %u %31s", n, out); }
API int nvmlDeviceGetGraphicsRunningProcesses_v2(dev d, u32 *n, struct proc *out) { return processes(d, "nvmlDeviceGetGraphicsRunningProcesses_v2", "gfx %d %u %31s", n, out); }

struct use { u32 pid; u64 at; u32 sm, mem, enc, dec; };
struct uses { int gpu, any; u32 n, room; u64 since; struct use *out; };
static int cb_use(char *l, void *arg) {
    struct uses *q = arg;
    int i; u32 pid, sm; u64 at;
    if (sscanf(l, "busy %d %u %u %llu", &i, &pid, &sm, &at) == 4 && i == q->gpu) {
        q->any = 1;
        if (at <= q->since) return 0;
        if (q->out && q->n < q->room) q->out[q->n] = (struct use){pid, at, sm, 0, 0, 0};
        q->n++;
    }
    return 0;
}
API int nvmlDeviceGetProcessUtilization(dev d, struct use *out, u32 *n, u64 since) {
    int r = before(d, "nvmlDeviceGetProcessUtilization");
    if (r) return r;
    struct uses q = {index_of(d), 0, 0, out ? *n : 0, since, out};
    each("busy", cb_use, &q);
    if (!q.any) return NOTSUP;
    r = !q.n ? 6 : !out || *n < q.n ? INSUF : OK;
    *n = q.n;
    return r;
}

struct event { dev d; u64 type, data; u32 gi, ci; };
struct xid { int gpu, code, seq, gi, ci; };
static int cb_xid(char *l, void *arg) {
    struct xid *x = arg;
    int seq, i, code, gi = -1, ci = -1;
    if ((sscanf(l, "migxid %d %d %d %d %d", &seq, &i, &code, &gi, &ci) == 5 || sscanf(l, "xid %d %d %d", &seq, &i, &code) == 3)
        && seq > last_xid) { *x = (struct xid){i, code, seq, gi, ci}; return 1; }
    return 0;
}
API int nvmlEventSetCreate(void **set) { *set = event_set; return before(0, "nvmlEventSetCreate"); }
API int nvmlEventSetFree(void *set) { (void)set; return OK; }
API int nvmlDeviceRegisterEvents(dev d, u64 types, void *set) { (void)types; (void)set; return before(d, "nvmlDeviceRegisterEvents"); }
API int nvmlEventSetWait_v2(void *set, struct event *e, u32 ms) {
    (void)set;
    /* The driver wakes its waiters; we look. Tests want that often, a measurement does not. */
    const char *every = getenv("NEBULA_NVML_LOOK_MS");
    u32 step = every ? (u32)atoi(every) : 2;
    for (u32 waited = 0;; waited += step) {
        struct xid x = {-1, 0, 0, -1, -1};
        pthread_mutex_lock(&mutex);
        each("xid migxid", cb_xid, &x);
        if (x.seq) last_xid = x.seq;
        pthread_mutex_unlock(&mutex);
        if (x.seq) { *e = (struct event){handles + 1 + x.gpu, 8, (u64)x.code, (u32)x.gi, (u32)x.ci}; return OK; }
        if (waited >= ms) return TIMEOUT_;
        usleep(step * 1000);
    }
}
