/* Writes random words to random places of the modelled machine's device, as root in a guest can, until it is
 * killed. Every other word goes to what is small or to the heads of things, where it does most. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int is(char const *device, char const *file, char const *wanted)
{
    char path[512], text[16] = "";
    snprintf(path, sizeof path, "%s/%s", device, file);
    FILE *opened = fopen(path, "r");
    if (!opened)
        return 0;
    char *read = fgets(text, sizeof text, opened);
    fclose(opened);
    return read && !strncmp(text, wanted, strlen(wanted));
}

int main(void)
{
    glob_t devices;
    if (glob("/sys/bus/pci/devices/*", 0, 0, &devices))
        return 1;
    for (size_t at = 0; at < devices.gl_pathc; at++) {
        char const *device = devices.gl_pathv[at];
        if (!is(device, "vendor", "0x1af4") || !is(device, "device", "0x1110"))
            continue;
        char path[512];
        snprintf(path, sizeof path, "%s/resource2", device);
        int file = open(path, O_RDWR);
        struct stat status;
        if (file < 0 || fstat(file, &status))
            return 1;
        size_t words = status.st_size / 8;
        uint64_t volatile *memory = mmap(0, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED)
            return 1;
        printf("scribbling\n");
        fflush(stdout);
        uint64_t random = 88172645463325252;
        for (long count = 0;; count++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t place = random % (random & 1 << 20 ? words : 512);
            memory[place] = random & 1 << 21 ? random * 0x9e3779b97f4a7c15u : random >> 52;
            if (count % 10000 == 0)
                usleep(1000);
        }
    }
    return 1;
}
