/* A libnvidia-ml.so.1 for tests: answers from a text file, and fails in the ways that real ones do.

   $FAKE_NVML_STATE names the file; it is read anew whenever it has changed, so a test can break a card while a program runs.
   A line is one of
     driver TEXT                     driver version
     generation N                    a change is a driver reload: whoever initialised before gets DRIVER_NOT_LOADED from every call
     unloaded                        initialising fails with DRIVER_NOT_LOADED
     GPU KEY VALUE                   a fact about a card, keys as in set_fact()
     GPU proc PID BYTES              a process on it
     GPU grow N                      N more processes appear between asking for their number and asking for the list
     GPU fail FUNCTION CODE          that call on that card returns that nvmlReturn_t; FUNCTION * is all of them
     * fail FUNCTION CODE            the same for calls without a card, and for all cards
     * hang FUNCTION MS              that call takes so long
     topo A B LEVEL                  common ancestor of two cards
     xid SEQ GPU CODE                an event; each SEQ is delivered once, to sets on which the card was registered
   Compiled with -DOLD_DRIVER it lacks what drivers of some years ago lack. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define CARDS_MAX 64
#define PROCS_MAX 2048
#define RULES_MAX 64
#define XIDS_MAX 128
#define MIGS_MAX 7
#define LINKS_MAX 18

struct nvmlDevice_st {
    unsigned card;
    int mig; /* -1: the card itself */
};
struct nvmlEventSet_st {
    int registered[CARDS_MAX];
};

typedef struct {
    int present, links_up, mig_count;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE], name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    unsigned long long total, used, reserved, energy, ecc_corr, ecc_unc, throttles, pcie_tx, pcie_rx, nvlink_tx, nvlink_rx;
    unsigned util, memutil, temp, power, limit, mig, numa, sm_clock, mem_clock, replays, link_errors, recovery;
    unsigned rows_corr, rows_unc, rows_pending, rows_failed, nproc, grow;
    nvmlProcessInfo_t proc[PROCS_MAX];
} card_t;
typedef struct { int card, code; unsigned ms; char function[64]; } rule_t;
typedef struct { unsigned seq, card, code; } xid_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static card_t cards[CARDS_MAX];
static struct nvmlDevice_st handles[CARDS_MAX], migs[CARDS_MAX][MIGS_MAX];
static rule_t rules[RULES_MAX];
static xid_t xids[XIDS_MAX];
static unsigned count, rule_count, xid_count, seq_delivered, generation, opened_generation, references, topo[CARDS_MAX][CARDS_MAX];
static int unloaded;
static char driver[80];
static struct timespec seen_at;
static off_t seen_size;
static ino_t seen_inode;

static void set_fact(card_t *c, const char *key, const char *text) {
    unsigned long long v = strtoull(text, NULL, 0);
    if (!strcmp(key, "name")) snprintf(c->name, sizeof c->name, "%.80s", text);
    else if (!strcmp(key, "uuid")) snprintf(c->uuid, sizeof c->uuid, "%.80s", text);
    else if (!strcmp(key, "total")) c->total = v;
    else if (!strcmp(key, "used")) c->used = v;
    else if (!strcmp(key, "reserved")) c->reserved = v;
    else if (!strcmp(key, "util")) c->util = (unsigned)v;
    else if (!strcmp(key, "memutil")) c->memutil = (unsigned)v;
    else if (!strcmp(key, "temp")) c->temp = (unsigned)v;
    else if (!strcmp(key, "power_mw")) c->power = (unsigned)v;
    else if (!strcmp(key, "limit_mw")) c->limit = (unsigned)v;
    else if (!strcmp(key, "energy_mj")) c->energy = v;
    else if (!strcmp(key, "sm_clock")) c->sm_clock = (unsigned)v;
    else if (!strcmp(key, "mem_clock")) c->mem_clock = (unsigned)v;
    else if (!strcmp(key, "throttles")) c->throttles = v;
    else if (!strcmp(key, "ecc_corr")) c->ecc_corr = v;
    else if (!strcmp(key, "ecc_unc")) c->ecc_unc = v;
    else if (!strcmp(key, "rows")) sscanf(text, "%u %u %u %u", &c->rows_corr, &c->rows_unc, &c->rows_pending, &c->rows_failed);
    else if (!strcmp(key, "recovery")) c->recovery = (unsigned)v;
    else if (!strcmp(key, "pcie")) sscanf(text, "%llu %llu %u", &c->pcie_tx, &c->pcie_rx, &c->replays);
    else if (!strcmp(key, "nvlink")) sscanf(text, "%d %llu %llu %u", &c->links_up, &c->nvlink_tx, &c->nvlink_rx, &c->link_errors);
    else if (!strcmp(key, "mig")) sscanf(text, "%u %d", &c->mig, &c->mig_count);
    else if (!strcmp(key, "numa")) c->numa = (unsigned)v;
    else if (!strcmp(key, "grow")) c->grow = (unsigned)v;
    else if (!strcmp(key, "proc") && c->nproc < PROCS_MAX) {
        nvmlProcessInfo_t *p = &c->proc[c->nproc];
        if (sscanf(text, "%u %llu", &p->pid, &p->usedGpuMemory) == 2) {
            p->gpuInstanceId = p->computeInstanceId = 0xFFFFFFFFu;
            c->nproc++;
        }
    }
}

static void add_rule(const char *who, const char *function, int code, unsigned ms) {
    if (rule_count == RULES_MAX) return;
    rule_t *r = &rules[rule_count++];
    r->card = who[0] == '*' ? -1 : atoi(who);
    r->code = code;
    r->ms = ms;
    snprintf(r->function, sizeof r->function, "%s", function);
}

static void read_line(const char *line) {
    char who[16], key[32], text[256] = "", function[64];
    unsigned a, b, c, n;
    if (line[0] == '#' || line[0] == '\n') return;
    if (sscanf(line, "driver %79s", driver) == 1) return;
    if (sscanf(line, "generation %u", &generation) == 1) return;
    if (!strncmp(line, "unloaded", 8)) { unloaded = 1; return; }
    if (sscanf(line, "topo %u %u %u", &a, &b, &n) == 3 && a < CARDS_MAX && b < CARDS_MAX) { topo[a][b] = topo[b][a] = n; return; }
    if (sscanf(line, "xid %u %u %u", &a, &b, &c) == 3) {
        if (xid_count < XIDS_MAX) xids[xid_count++] = (xid_t){a, b, c};
        return;
    }
    if (sscanf(line, "%15s fail %63s %u", who, function, &n) == 3) { add_rule(who, function, (int)n, 0); return; }
    if (sscanf(line, "%15s hang %63s %u", who, function, &n) == 3) { add_rule(who, function, 0, n); return; }
    if (sscanf(line, "%u %31s %255[^\n]", &a, key, text) < 3 || a >= CARDS_MAX) return;
    card_t *card = &cards[a];
    if (!card->present) {
        card->present = 1;
        if (a + 1 > count) count = a + 1;
        snprintf(card->uuid, sizeof card->uuid, "GPU-00000000-0000-0000-0000-%012u", a);
        snprintf(card->name, sizeof card->name, "Fake GPU");
    }
    set_fact(card, key, text);
}

/* 0 if there is a state. */
static int load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat facts;
    if (!path || stat(path, &facts)) return -1;
    if (facts.st_ino == seen_inode && facts.st_size == seen_size && facts.st_mtim.tv_sec == seen_at.tv_sec &&
        facts.st_mtim.tv_nsec == seen_at.tv_nsec)
        return 0;
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    memset(cards, 0, sizeof cards);
    count = rule_count = xid_count = generation = 0;
    unloaded = 0;
    strcpy(driver, "580.00.00");
    for (unsigned a = 0; a < CARDS_MAX; a++)
        for (unsigned b = 0; b < CARDS_MAX; b++) topo[a][b] = NVML_TOPOLOGY_SYSTEM;
    char line[512];
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    seen_inode = facts.st_ino;
    seen_size = facts.st_size;
    seen_at = facts.st_mtim;
    return 0;
}

static void pause_ms(unsigned ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

/* What a rule says about this call; hanging happens without the lock, as in a driver that doesn't answer. */
static nvmlReturn_t ruled(const char *function, int card) {
    for (unsigned i = 0; i < rule_count; i++) {
        rule_t r = rules[i];
        if ((r.card != -1 && r.card != card) || (strcmp(r.function, "*") && strcmp(r.function, function))) continue;
        if (r.ms) {
            pthread_mutex_unlock(&lock);
            pause_ms(r.ms);
            pthread_mutex_lock(&lock);
        } else
            return (nvmlReturn_t)r.code;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t entered(const char *function, int card) {
    if (!references) return NVML_ERROR_UNINITIALIZED;
    if (load() || unloaded || generation != opened_generation) return NVML_ERROR_DRIVER_NOT_LOADED;
    return ruled(function, card);
}

static int known(nvmlDevice_t d) {
    int card = d >= handles && d < handles + CARDS_MAX;
    int mig = d >= &migs[0][0] && d < &migs[0][0] + CARDS_MAX * MIGS_MAX;
    return (card || mig) && d->card < count;
}

#define LEAVE(result) do { nvmlReturn_t r_ = (result); pthread_mutex_unlock(&lock); return r_; } while (0)
#define ENTER do { pthread_mutex_lock(&lock); nvmlReturn_t e_ = entered(__func__, -1); if (e_) LEAVE(e_); } while (0)
#define DEVICE(d) \
    pthread_mutex_lock(&lock); \
    if (!known(d)) LEAVE(references ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED); \
    nvmlReturn_t entered_ = entered(__func__, (int)(d)->card); \
    if (entered_) LEAVE(entered_); \
    card_t *c = &cards[(d)->card]; \
    if (!c->present) LEAVE(NVML_ERROR_GPU_IS_LOST)
#define NEEDED(pointer) if (!(pointer)) LEAVE(NVML_ERROR_INVALID_ARGUMENT)

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    if (load() || unloaded) LEAVE(NVML_ERROR_DRIVER_NOT_LOADED);
    nvmlReturn_t said = ruled(__func__, -1);
    if (said) LEAVE(said);
    if (!references) opened_generation = generation;
    for (unsigned i = 0; i < CARDS_MAX; i++) {
        handles[i] = (struct nvmlDevice_st){i, -1};
        for (int m = 0; m < MIGS_MAX; m++) migs[i][m] = (struct nvmlDevice_st){i, m};
    }
    references++;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (!references) LEAVE(NVML_ERROR_UNINITIALIZED);
    references--;
    LEAVE(NVML_SUCCESS);
}
const char *nvmlErrorString(nvmlReturn_t r) {
    switch (r) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Fake NVML error";
    }
}

static nvmlReturn_t text_out(char *to, unsigned length, const char *text) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (length <= strlen(text)) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *v, unsigned l) { ENTER; LEAVE(text_out(v, l, driver)); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { ENTER; NEEDED(n); *n = count; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *d) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t said = entered(__func__, (int)i);
    if (said) LEAVE(said);
    if (i >= count || !d) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    *d = &handles[i];
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *i) { DEVICE(d); (void)c; NEEDED(i); *i = d->card; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *u, unsigned l) {
    char text[120];
    DEVICE(d);
    if (d->mig < 0) snprintf(text, sizeof text, "%s", c->uuid);
    else snprintf(text, sizeof text, "MIG-%u-%d", d->card, d->mig);
    LEAVE(text_out(u, l, text));
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *u, unsigned l) { DEVICE(d); LEAVE(text_out(u, l, c->name)); }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
    DEVICE(d);
    NEEDED(m);
    unsigned long long part = d->mig < 0 ? 1 : MIGS_MAX;
    m->total = c->total / part;
    m->used = (c->used + c->reserved) / part;
    m->free = m->total - m->used;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) {
    DEVICE(d);
    NEEDED(u);
    if (c->mig == 1) LEAVE(NVML_ERROR_NOT_SUPPORTED); /* as real cards in MIG mode */
    u->gpu = c->util;
    u->memory = c->memutil;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t s, unsigned *t) {
    DEVICE(d);
    NEEDED(t);
    if (s != NVML_TEMPERATURE_GPU) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    *t = c->temp;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *p) { DEVICE(d); NEEDED(p); *p = c->power; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *p) { DEVICE(d); NEEDED(p); *p = c->limit; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *e) { DEVICE(d); NEEDED(e); *e = c->energy; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned *mhz) {
    DEVICE(d);
    NEEDED(mhz);
    if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    *mhz = type == NVML_CLOCK_SM ? c->sm_clock : c->mem_clock;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t e, nvmlEccCounterType_t k, unsigned long long *n) {
    DEVICE(d);
    NEEDED(n);
    (void)k;
    *n = e == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? c->ecc_unc : c->ecc_corr;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *list) {
    DEVICE(d);
    NEEDED(n);
    unsigned room = *n;
    for (; list && c->grow && c->nproc < PROCS_MAX; c->grow--, c->nproc++)
        c->proc[c->nproc] = (nvmlProcessInfo_t){900000u + c->nproc, 1048576ull, 0xFFFFFFFFu, 0xFFFFFFFFu};
    *n = c->nproc;
    if (room < c->nproc) LEAVE(NVML_ERROR_INSUFFICIENT_SIZE);
    if (list) memcpy(list, c->proc, c->nproc * sizeof *list);
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *now, unsigned *next) {
    DEVICE(d);
    NEEDED(now && next);
    if (c->mig == 2) LEAVE(NVML_ERROR_NOT_SUPPORTED);
    *now = *next = c->mig;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n) { DEVICE(d); NEEDED(n); *n = c->mig == 1 ? MIGS_MAX : 0; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned i, nvmlDevice_t *m) {
    DEVICE(d);
    NEEDED(m);
    if (c->mig != 1 || i >= MIGS_MAX) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    if ((int)i >= c->mig_count) LEAVE(NVML_ERROR_NOT_FOUND);
    *m = &migs[d->card][i];
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id) {
    DEVICE(d);
    (void)c;
    NEEDED(id);
    if (d->mig < 0) LEAVE(NVML_ERROR_NOT_SUPPORTED);
    *id = (unsigned)d->mig + 7;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, unsigned *node) { DEVICE(d); NEEDED(node); *node = c->numa; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level) {
    DEVICE(a);
    (void)c;
    NEEDED(level);
    if (!known(b)) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    *level = a == b ? NVML_TOPOLOGY_INTERNAL : (nvmlGpuTopologyLevel_t)topo[a->card][b->card];
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, nvmlEnableState_t *up) {
    DEVICE(d);
    NEEDED(up);
    if (!c->links_up) LEAVE(NVML_ERROR_NOT_SUPPORTED);
    if (link >= LINKS_MAX) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    *up = (int)link < c->links_up ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *status) {
    DEVICE(a);
    NEEDED(status);
    if (!known(b)) LEAVE(NVML_ERROR_INVALID_ARGUMENT);
    int linked = which == NVML_P2P_CAPS_INDEX_NVLINK && c->links_up && cards[b->card].links_up;
    *status = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    ENTER;
    NEEDED(set);
    *set = calloc(1, sizeof **set);
    LEAVE(*set ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { free(set); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set) {
    DEVICE(d);
    (void)c;
    NEEDED(set);
    if (!(types & nvmlEventTypeXidCriticalError)) LEAVE(NVML_ERROR_NOT_SUPPORTED);
    set->registered[d->card] = 1;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += 5) {
        pthread_mutex_lock(&lock);
        nvmlReturn_t said = entered(__func__, -1);
        if (said) LEAVE(said);
        for (unsigned i = 0; i < xid_count; i++) {
            xid_t x = xids[i];
            if (x.seq <= seq_delivered || x.card >= CARDS_MAX || !set->registered[x.card]) continue;
            seq_delivered = x.seq;
            *event = (nvmlEventData_t){&handles[x.card], nvmlEventTypeXidCriticalError, x.code, 0xFFFFFFFFu, 0xFFFFFFFFu};
            LEAVE(NVML_SUCCESS);
        }
        pthread_mutex_unlock(&lock);
        if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
        pause_ms(5);
    }
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
    DEVICE(d);
    NEEDED(m);
    if (m->version != nvmlMemory_v2) LEAVE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    m->total = c->total;
    m->used = c->used;
    m->reserved = c->reserved;
    m->free = c->total - c->used - c->reserved;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, nvmlTemperature_t *t) {
    DEVICE(d);
    NEEDED(t);
    if (t->version != nvmlTemperature_v1) LEAVE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    t->temperature = (int)c->temp;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *r) { DEVICE(d); NEEDED(r); *r = c->throttles; LEAVE(NVML_SUCCESS); }
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    DEVICE(d);
    NEEDED(corr && unc && pending && failed);
    *corr = c->rows_corr;
    *unc = c->rows_unc;
    *pending = c->rows_pending;
    *failed = c->rows_failed;
    LEAVE(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *values) {
    DEVICE(d);
    NEEDED(values && n > 0);
    for (int i = 0; i < n; i++) {
        nvmlFieldValue_t *v = &values[i];
        int linked = c->links_up > 0;
        v->nvmlReturn = NVML_SUCCESS;
        v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        switch (v->fieldId) {
        case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: v->value.ullVal = c->nvlink_tx; if (!linked) v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; break;
        case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: v->value.ullVal = c->nvlink_rx; if (!linked) v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; break;
        case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: v->value.ullVal = c->link_errors; if (!linked) v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; break;
        case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: v->value.ullVal = c->pcie_tx; break;
        case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: v->value.ullVal = c->pcie_rx; break;
        case NVML_FI_DEV_PCIE_REPLAY_COUNTER: v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT; v->value.ullVal = 0; v->value.uiVal = c->replays; break;
        case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT; v->value.ullVal = 0; v->value.uiVal = c->recovery; break;
        default: v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        }
    }
    LEAVE(NVML_SUCCESS);
}
#endif
