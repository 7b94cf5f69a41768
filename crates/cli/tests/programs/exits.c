/* Exits with the code given, or waits to be ended. */
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int code = count > 1 ? atoi(arguments[1]) : 0;
    if (code < 0) pause();
    return code;
}
