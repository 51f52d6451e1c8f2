/* The floor: reads lines, and answers each that has an id with one fixed result, copying the id and looking at nothing else.
 *
 * usage: echo RESULT [FILE]   (RESULT is a file that holds the result as JSON, in one line)
 *
 * What it costs is the pipe, two system calls and a wake-up on either side; a server that does anything costs more. With
 * FILE it reads that anew for each answer and forgets it, which is the least that a server which reads must do.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char input[1 << 16], output[1 << 16], result[1 << 15], content[1 << 16];
static const char *read_too;

static void put(size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(1, output + done, length - done);
        if (n <= 0)
            exit(1);
        done += (size_t)n;
    }
}

static void answer(char *line, size_t result_length)
{
    char *id = strstr(line, "\"id\":");
    if (!id)
        return;
    id += 5;
    if (read_too) {
        int file = open(read_too, O_RDONLY);
        if (read(file, content, sizeof content) <= 0)
            exit(1);
        close(file);
    }
    size_t id_length = strcspn(id, ",}");
    size_t at = (size_t)sprintf(output, "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":", (int)(id_length < 64 ? id_length : 64), id);
    memcpy(output + at, result, result_length);
    at += result_length;
    memcpy(output + at, "}\n", 2);
    put(at + 2);
}

int main(int count, char **arguments)
{
    size_t held = 0;
    int file = count > 1 ? open(arguments[1], O_RDONLY) : -1;
    ssize_t result_length = read(file, result, sizeof result);
    if (result_length <= 0)
        return 2;
    close(file);
    if (count > 2)
        read_too = arguments[2];
    if (result[result_length - 1] == '\n')
        result_length--;
    for (;;) {
        ssize_t n = read(0, input + held, sizeof input - 1 - held);
        if (n <= 0)
            return n < 0;
        held += (size_t)n;
        char *line = input, *end;
        while ((end = memchr(line, '\n', held - (size_t)(line - input)))) {
            *end = 0;
            answer(line, (size_t)result_length);
            line = end + 1;
        }
        held -= (size_t)(line - input);
        memmove(input, line, held);
    }
}
