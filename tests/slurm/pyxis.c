/* Stands for pyxis: srun and sbatch take its options, and each task finds an option's value as PYXIS_<OPTION>.
   It starts no container. */

#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(pyxis, 1);

#define COUNT 4
static char *names[COUNT] = {"container-image", "container-mounts", "container-workdir", "container-env"};
static char *values[COUNT];

static int keep(int option, const char *value, int remote)
{
    (void) remote;
    values[option] = strdup(value);
    return ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void) argc;
    (void) argv;
    for (int i = 0; i < COUNT; i++) {
        struct spank_option option = {names[i], "VALUE", "as pyxis has it", 1, i, keep};
        if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void) argc;
    (void) argv;
    for (int i = 0; i < COUNT; i++) {
        char name[64];
        if (values[i] == NULL)
            continue;
        snprintf(name, sizeof name, "PYXIS_%s", names[i]);
        for (char *letter = name; *letter != '\0'; letter++)
            *letter = *letter == '-' ? '_' : *letter;
        if (spank_setenv(spank, name, values[i], 1) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    }
    return ESPANK_SUCCESS;
}
