/* A tuner that follows the documented rules of NCCL's example plugin for its table; written for these tests.
 *
 * usage: tuner TABLE < queries
 *
 * A query is a line "collective bytes nodes ranks pipelined registered ignored", where `ignored` lists the
 * algorithms and protocols that are not available, as "ll,tree", or is "none". The answer is a line "algorithm protocol channels": those of the
 * first rule that matches and is available, or "none none 1". As in the plugin, channels are 1 before any rule
 * is looked at, and a rule with -1 channels leaves them so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLLECTIVE, LEAST, MOST, ALGORITHM, PROTOCOL, CHANNELS, NODES, RANKS, PIPELINED, REGISTERED, FIELDS };

struct rule {
    char collective[32], algorithm[32], protocol[32];
    unsigned long long least, most;
    long channels, wanted[4]; /* nodes, ranks, pipelined, registered; -1 matches any */
};

static char *trimmed(char *word) {
    while (*word == ' ' || *word == '\t') word++;
    char *end = word + strlen(word);
    while (end > word && strchr(" \t\r\n", end[-1])) *--end = '\0';
    return word;
}

static int is_one_of(const char *word, const char *known) {
    char padded[64];
    snprintf(padded, sizeof padded, " %s ", word);
    return strstr(known, padded) != NULL;
}

static int is_listed(const char *word, const char *list) {
    char padded[128], wanted[64];
    snprintf(padded, sizeof padded, ",%s,", list);
    snprintf(wanted, sizeof wanted, ",%s,", word);
    return strstr(padded, wanted) != NULL;
}

/* As in NCCL's tables: trees are for allreduces alone, and only rings and trees have more than one protocol. */
static int is_known(const char *collective, const char *algorithm, const char *protocol) {
    if (!strcmp(algorithm, "ring")) return 1;
    if (!strcmp(collective, "broadcast") || !strcmp(collective, "reduce")) return 0;
    if (!strcmp(algorithm, "tree")) return !strcmp(collective, "allreduce");
    if (strcmp(protocol, "simple")) return 0;
    const char *names = !strcmp(collective, "allreduce") ? " collnet_direct collnet_chain nvls nvls_tree "
                                                         : " collnet_direct nvls pat ";
    return is_one_of(algorithm, names);
}

static int read_rule(char *line, struct rule *rule) {
    char *fields[FIELDS + 1];
    int count = 0;
    for (char *word = strtok(line, ","); word && count <= FIELDS; word = strtok(NULL, ","))
        fields[count++] = trimmed(word);
    if (count < PIPELINED || count > FIELDS) return 0;
    if (!is_one_of(fields[COLLECTIVE], " broadcast reduce allgather reducescatter allreduce ")
        || !is_one_of(fields[ALGORITHM], " tree ring collnet_direct collnet_chain nvls nvls_tree pat ")
        || !is_one_of(fields[PROTOCOL], " ll ll128 simple ")) {
        fprintf(stderr, "unknown word in a rule for %s\n", fields[COLLECTIVE]);
        exit(3);
    }
    if (!is_known(fields[COLLECTIVE], fields[ALGORITHM], fields[PROTOCOL])) {
        fprintf(stderr, "no %s with %s for %s\n", fields[ALGORITHM], fields[PROTOCOL], fields[COLLECTIVE]);
        exit(4);
    }
    snprintf(rule->collective, sizeof rule->collective, "%s", fields[COLLECTIVE]);
    snprintf(rule->algorithm, sizeof rule->algorithm, "%s", fields[ALGORITHM]);
    snprintf(rule->protocol, sizeof rule->protocol, "%s", fields[PROTOCOL]);
    rule->least = strtoull(fields[LEAST], NULL, 10);
    rule->most = strtoull(fields[MOST], NULL, 10);
    rule->channels = strtol(fields[CHANNELS], NULL, 10);
    for (int i = 0; i < 4; i++) rule->wanted[i] = NODES + i < count ? strtol(fields[NODES + i], NULL, 10) : -1;
    return 1;
}

int main(int argc, char **argv) {
    static struct rule rules[10000];
    int count = 0;
    char line[256], collective[32], ignored[128];
    unsigned long long bytes;
    long given[4];
    FILE *table = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!table) return 2;
    while (count < 10000 && fgets(line, sizeof line, table))
        if (line[0] != '#' && line[0] != '\n') count += read_rule(line, &rules[count]);
    while (scanf("%31s %llu %ld %ld %ld %ld %127s", collective, &bytes, &given[0], &given[1], &given[2], &given[3],
                 ignored) == 7) {
        const char *algorithm = "none", *protocol = "none";
        long channels = 1;
        for (struct rule *rule = rules; rule < rules + count; rule++) {
            int matches = !strcmp(rule->collective, collective) && rule->least <= bytes && bytes <= rule->most;
            for (int i = 0; i < 4; i++) matches &= rule->wanted[i] == -1 || rule->wanted[i] == given[i];
            if (!matches || is_listed(rule->protocol, ignored) || is_listed(rule->algorithm, ignored)) continue;
            algorithm = rule->algorithm, protocol = rule->protocol;
            if (rule->channels != -1) channels = rule->channels;
            break;
        }
        printf("%s %s %ld\n", algorithm, protocol, channels);
    }
    return 0;
}
