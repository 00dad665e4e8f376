/* A small libze_loader.so.1 for tests: sysman's calls, answered from the text file that NEBULA_ZE_STATE names, which is read
   at every call. Structures are written down here once more, after zes_api.h 1.15; the compiler lays them out, not ctypes.

     init <code>                     zesInit fails with that code
     gpu <i> <key> <value>           keys: see below; a key that is absent is an unsupported feature
     proc <i> <pid> <bytes>          a process
     fail <i> <function|*> <code>    hex or decimal               hang <function> <ms> */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef uint32_t u32;
typedef uint64_t u64;
typedef uint8_t ze_bool;
typedef void *handle;
enum { OK = 0, UNINITIALIZED = 0x78000001, UNSUPPORTED = 0x78000003, BAD_ENUM = 0x7800000c };

struct core { u32 stype; void *next; u32 type, vendor, device, flags, subdevice, clock; u64 alloc; u32 contexts, priority, threads, simd, eus,
    subslices, slices; u64 timer; u32 bits, kernel_bits; uint8_t uuid[16]; char name[256]; };
struct device { u32 stype; void *next; struct core core; u32 subdevices; char serial[64], board[64], brand[64], model[64], vendor[64], driver[64]; };
struct state { u32 stype; void *next; u32 reset, repaired; };
struct speed { int32_t gen, width; int64_t bandwidth; };
struct pci { u32 stype; void *next; struct { u32 domain, bus, device, function; } at; struct speed speed; ze_bool a, b, c; };
struct pci_state { u32 stype; void *next; u32 status, quality, stability; struct speed speed; };
struct place { u32 stype; void *next; u32 type; ze_bool on; u32 subdevice; };
struct mem { u32 stype; void *next; u32 type; ze_bool on; u32 subdevice, location; u64 physical; int32_t width, channels; };
struct mem_state { u32 stype; void *next; u32 health; u64 free, size; };
struct engine_stats { u64 active, time; };
struct temp { u32 stype; void *next; u32 type; ze_bool on; u32 subdevice; double max; ze_bool a, b, c; };
struct energy { u64 energy, time; };
struct freq { u32 stype; void *next; u32 type; ze_bool on; u32 subdevice; ze_bool control, event; double min, max; };
struct freq_state { u32 stype; void *next; double voltage, request, tdp, efficient, actual; u32 throttle; };
struct process { u32 stype; void *next; u32 pid; u64 mem, shared; u32 engines; };
struct ras_state { u32 stype; void *next; u64 category[7]; };

static int inited;

/* --- the state file ------------------------------------------------------------------------------------------ */

static int each(int (*line_cb)(char *, void *), void *arg) {
    const char *path = getenv("NEBULA_ZE_STATE");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return 0;
    static __thread char text[65536];
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    char *save;
    int r = 0;
    for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
        if ((r = line_cb(l, arg))) break;
    return r;
}
struct want { int gpu; const char *key; char *out; size_t size; };
static int cb_get(char *l, void *arg) {
    struct want *w = arg;
    int i, at = 0;
    char key[64];
    if (sscanf(l, "gpu %d %63s %n", &i, key, &at) == 2 && at && i == w->gpu && !strcmp(key, w->key)) {
        snprintf(w->out, w->size, "%s", l + at);
        return 1;
    }
    return 0;
}
static int get(int gpu, const char *key, char *out, size_t size) {
    struct want w = {gpu, key, out, size};
    return each(cb_get, &w);
}
static int cb_count(char *l, void *arg) {
    int i, *max = arg;
    if (sscanf(l, "gpu %d", &i) == 1 && i + 1 > *max) *max = i + 1;
    return 0;
}
struct trouble { int gpu; const char *fn; u32 code; int ms; };
static int cb_trouble(char *l, void *arg) {
    struct trouble *t = arg;
    int i, n;
    char fn[80], code[32];
    if (sscanf(l, "fail %d %79s %31s", &i, fn, code) == 3 && i == t->gpu && (!strcmp(fn, "*") || !strcmp(fn, t->fn))) t->code = (u32)strtoul(code, 0, 0);
    if (sscanf(l, "hang %79s %d", fn, &n) == 2 && !strcmp(fn, t->fn)) t->ms = n;
    return 0;
}

/* --- handles: card, kind of thing, number of it ---------------------------------------------------------------- */

static handle make(int gpu, int kind, int n) { return (handle)(uintptr_t)(((gpu + 1) << 16) | (kind << 8) | (n + 1)); }
static int gpu_of(handle h) { return (int)((uintptr_t)h >> 16) - 1; }
static int number_of(handle h) { return (int)((uintptr_t)h & 0xff) - 1; }
static u32 before(handle h, const char *fn) {
    struct trouble t = {gpu_of(h), fn, 0, 0};
    if (!inited) return UNINITIALIZED;
    each(cb_trouble, &t);
    if (t.ms) usleep((u32)t.ms * 1000);
    return t.code;
}
static u32 number(handle h, const char *fn, const char *key, double *out) {
    char text[64];
    u32 r = before(h, fn);
    if (r) return r;
    if (!get(gpu_of(h), key, text, sizeof text)) return UNSUPPORTED;
    *out = strtod(text, 0);
    return OK;
}
static u32 list(u32 *count, handle *out, int have, handle first, int step) {
    if (!out || !*count) { *count = (u32)have; return OK; }
    for (int i = 0; i < have && i < (int)*count; i++) out[i] = (handle)((uintptr_t)first + (uintptr_t)(i * step));
    if ((int)*count > have) *count = (u32)have;
    return OK;
}
static int has(handle h, const char *key) { char text[64]; return get(gpu_of(h), key, text, sizeof text); }

/* --- the library ----------------------------------------------------------------------------------------------- */

static int cb_init(char *l, void *arg) { char code[32]; return sscanf(l, "init %31s", code) == 1 ? (*(u32 *)arg = (u32)strtoul(code, 0, 0), 1) : 0; }
API u32 zesInit(u32 flags) { u32 code = 0; (void)flags; each(cb_init, &code); inited = !code; return code; }
API u32 zesDriverGet(u32 *n, handle *out) { return list(n, out, 1, make(0, 1, 0), 0); }
API u32 zesDeviceGet(handle d, u32 *n, handle *out) { int have = 0; (void)d; each(cb_count, &have); return list(n, out, have, make(0, 2, 0), 1 << 16); }
API u32 zesDeviceGetProperties(handle d, struct device *p) {
    u32 r = before(d, "zesDeviceGetProperties");
    if (r) return r;
    if (p->stype != 1 || p->core.stype != 3) return BAD_ENUM;
    char text[96] = "";
    p->core.type = 1;
    p->core.flags = has(d, "integrated") ? 1 : 0;
    if (has(d, "npu")) p->core.type = 5;
    get(gpu_of(d), "name", p->core.name, sizeof p->core.name);
    get(gpu_of(d), "driver", p->driver, sizeof p->driver);
    get(gpu_of(d), "uuid", text, sizeof text);
    for (int i = 0; i < 16; i++) { unsigned byte = 0; sscanf(text + 2 * i, "%2x", &byte); p->core.uuid[i] = (uint8_t)byte; }
    return OK;
}
API u32 zesDeviceGetState(handle d, struct state *s) {
    double v = 0;
    u32 r = before(d, "zesDeviceGetState");
    if (r) return r;
    if (s->stype != 0x15) return BAD_ENUM;
    if (has(d, "wedged")) number(d, "", "wedged", &v);
    s->reset = (u32)v;
    return OK;
}
API u32 zesDevicePciGetProperties(handle d, struct pci *p) {
    char text[64];
    double gen = -1, width = -1;
    u32 r = before(d, "zesDevicePciGetProperties");
    if (r) return r;
    if (p->stype != 2) return BAD_ENUM;
    if (!get(gpu_of(d), "pci", text, sizeof text)) return UNSUPPORTED;
    sscanf(text, "%x:%x:%x.%x", &p->at.domain, &p->at.bus, &p->at.device, &p->at.function);
    number(d, "", "gen", &gen); number(d, "", "width", &width);
    p->speed.gen = (int32_t)gen; p->speed.width = (int32_t)width;
    return OK;
}
API u32 zesDevicePciGetState(handle d, struct pci_state *s) {
    double gen, width;
    u32 r = number(d, "zesDevicePciGetState", "gen_now", &gen);
    if (r) return r;
    if (s->stype != 0x17) return BAD_ENUM;
    s->speed.gen = (int32_t)gen;
    s->speed.width = number(d, "", "width_now", &width) ? -1 : (int32_t)width;
    return OK;
}
API u32 zesDeviceEnumMemoryModules(handle d, u32 *n, handle *out) { return list(n, out, has(d, "total") ? 1 : 0, make(gpu_of(d), 3, 0), 1); }
API u32 zesMemoryGetProperties(handle h, struct mem *m) {
    double v = 0;
    u32 r = before(h, "zesMemoryGetProperties");
    if (r) return r;
    if (m->stype != 0xb) return BAD_ENUM;
    number(h, "", "physical", &v);
    m->physical = (u64)v;
    return OK;
}
API u32 zesMemoryGetState(handle h, struct mem_state *s) {
    double total, used;
    u32 r = number(h, "zesMemoryGetState", "total", &total);
    if (r || (r = number(h, "zesMemoryGetState", "used", &used))) return r;
    if (s->stype != 0x1e) return BAD_ENUM;
    s->size = (u64)total; s->free = (u64)(total - used);
    return OK;
}
/* Engine groups: "engines" holds their types, "0" or "1,12"; "active" their counters in the same order. */
static int nth(const char *text, int n, double *out) {
    for (; n > 0 && text; n--) { text = strchr(text, ','); if (text) text++; }
    return text && *text ? (*out = strtod(text, 0), 1) : 0;
}
API u32 zesDeviceEnumEngineGroups(handle d, u32 *n, handle *out) {
    char text[64];
    double v;
    int have = 0;
    if (get(gpu_of(d), "engines", text, sizeof text)) while (nth(text, have, &v)) have++;
    return list(n, out, have, make(gpu_of(d), 4, 0), 1);
}
API u32 zesEngineGetProperties(handle h, struct place *p) {
    char text[64];
    double v;
    u32 r = before(h, "zesEngineGetProperties");
    if (r) return r;
    if (p->stype != 5) return BAD_ENUM;
    if (!get(gpu_of(h), "engines", text, sizeof text) || !nth(text, number_of(h), &v)) return UNSUPPORTED;
    p->type = (u32)v;
    return OK;
}
API u32 zesEngineGetActivity(handle h, struct engine_stats *s) {
    char text[64];
    double v, at;
    u32 r = before(h, "zesEngineGetActivity");
    if (r) return r;
    if (!get(gpu_of(h), "active", text, sizeof text) || !nth(text, number_of(h), &v) || number(h, "", "clock", &at)) return UNSUPPORTED;
    s->active = (u64)v; s->time = (u64)at;
    return OK;
}
/* Sensors: "sensors" holds their types, "temps" their values. */
API u32 zesDeviceEnumTemperatureSensors(handle d, u32 *n, handle *out) {
    char text[64];
    double v;
    int have = 0;
    if (get(gpu_of(d), "sensors", text, sizeof text)) while (nth(text, have, &v)) have++;
    return list(n, out, have, make(gpu_of(d), 5, 0), 1);
}
API u32 zesTemperatureGetProperties(handle h, struct temp *t) {
    char text[64];
    double v, max = -1;
    u32 r = before(h, "zesTemperatureGetProperties");
    if (r) return r;
    if (t->stype != 0x14) return BAD_ENUM;
    if (!get(gpu_of(h), "sensors", text, sizeof text) || !nth(text, number_of(h), &v)) return UNSUPPORTED;
    number(h, "", "max_c", &max);
    t->type = (u32)v; t->max = max;
    return OK;
}
API u32 zesTemperatureGetState(handle h, double *out) {
    char text[64];
    u32 r = before(h, "zesTemperatureGetState");
    if (r) return r;
    return get(gpu_of(h), "temps", text, sizeof text) && nth(text, number_of(h), out) ? OK : UNSUPPORTED;
}
API u32 zesDeviceEnumPowerDomains(handle d, u32 *n, handle *out) { return list(n, out, has(d, "energy") ? 1 : 0, make(gpu_of(d), 6, 0), 1); }
API u32 zesPowerGetEnergyCounter(handle h, struct energy *e) {
    double v, at;
    u32 r = number(h, "zesPowerGetEnergyCounter", "energy", &v);
    if (r || (r = number(h, "zesPowerGetEnergyCounter", "clock", &at))) return r;
    e->energy = (u64)v; e->time = (u64)at;
    return OK;
}
API u32 zesDeviceEnumFrequencyDomains(handle d, u32 *n, handle *out) { return list(n, out, has(d, "mem_mhz") ? 2 : has(d, "core_mhz") ? 1 : 0, make(gpu_of(d), 7, 0), 1); }
API u32 zesFrequencyGetProperties(handle h, struct freq *f) {
    double max = -1;
    u32 r = before(h, "zesFrequencyGetProperties");
    if (r) return r;
    if (f->stype != 9) return BAD_ENUM;
    f->type = (u32)number_of(h);
    if (!number_of(h)) number(h, "", "core_max", &max);
    f->max = max;
    return OK;
}
API u32 zesFrequencyGetState(handle h, struct freq_state *s) {
    double v, throttle = 0;
    u32 r = number(h, "zesFrequencyGetState", number_of(h) ? "mem_mhz" : "core_mhz", &v);
    if (r) return r;
    if (s->stype != 0x1b) return BAD_ENUM;
    number(h, "", "throttle", &throttle);
    s->actual = v; s->throttle = (u32)throttle;
    return OK;
}
API u32 zesDeviceEnumFans(handle d, u32 *n, handle *out) { return list(n, out, has(d, "fan") ? 1 : 0, make(gpu_of(d), 8, 0), 1); }
API u32 zesFanGetState(handle h, u32 units, int32_t *out) {
    double v;
    u32 r = number(h, "zesFanGetState", "fan", &v);
    if (r) return r;
    *out = units == 1 ? (int32_t)v : 2000;
    return OK;
}
API u32 zesDeviceEnumRasErrorSets(handle d, u32 *n, handle *out) { return list(n, out, has(d, "ras") ? 2 : 0, make(gpu_of(d), 9, 0), 1); }
API u32 zesRasGetProperties(handle h, struct place *p) {
    u32 r = before(h, "zesRasGetProperties");
    if (r) return r;
    if (p->stype != 0xf) return BAD_ENUM;
    p->type = (u32)number_of(h);
    return OK;
}
API u32 zesRasGetState(handle h, ze_bool clear, struct ras_state *s) {
    char text[64];
    double v = 0;
    u32 r = before(h, "zesRasGetState");
    if (r) return r;
    if (s->stype != 0x22 || clear) return BAD_ENUM;
    get(gpu_of(h), "ras", text, sizeof text);
    nth(text, number_of(h), &v);
    s->category[0] = 99; /* resets */
    s->category[3] = (u64)v;
    return OK;
}

struct listing { int gpu; u32 n, room; struct process *out; };
static int cb_proc(char *l, void *arg) {
    struct listing *q = arg;
    int i; u32 pid; unsigned long long used;
    if (sscanf(l, "proc %d %u %llu", &i, &pid, &used) == 3 && i == q->gpu) {
        if (q->out && q->n < q->room) { q->out[q->n].pid = pid; q->out[q->n].mem = used; }
        q->n++;
    }
    return 0;
}
API u32 zesDeviceProcessesGetState(handle d, u32 *n, struct process *out) {
    u32 r = before(d, "zesDeviceProcessesGetState");
    if (r) return r;
    if (out && out->stype != 0x16) return BAD_ENUM;
    struct listing q = {gpu_of(d), 0, out ? *n : 0, out};
    each(cb_proc, &q);
    *n = q.n;
    return OK;
}
