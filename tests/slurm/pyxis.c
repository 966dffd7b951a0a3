/* Stands for pyxis: srun and sbatch take its options, and each task finds an option's value as PYXIS_<OPTION>.
   It starts no container, but an image that is a file of NAME=VALUE lines sets these as pyxis lets an image do:
   before what was exported, unless --container-env has the name. */

#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(pyxis, 1);

#define COUNT 4
enum { IMAGE, MOUNTS, WORKDIR, ENV };
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

static int is_listed(const char *name)
{
    size_t length = strlen(name);
    for (const char *at = values[ENV]; at != NULL; at = strchr(at, ','), at = at == NULL ? NULL : at + 1)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return 1;
    return 0;
}

static int set_variables_of_image(spank_t spank)
{
    char line[1024];
    FILE *file = fopen(values[IMAGE], "r");
    if (file == NULL)
        return ESPANK_SUCCESS;
    while (fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, '=');
        line[strcspn(line, "\n")] = '\0';
        if (value == NULL)
            continue;
        *value++ = '\0';
        if (!is_listed(line) && spank_setenv(spank, line, value, 1) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    }
    fclose(file);
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
    return values[IMAGE] == NULL ? ESPANK_SUCCESS : set_variables_of_image(spank);
}
