#pragma once
// Starts programs for code that cannot, each after a question to the host. Both ends of what code
// sends are in its hands, so everything it says is looked at as an attack would be.
//
// Code sends, over the door, one byte and the end of a stream socket for each program. Over that
// goes the request of request.hpp; back comes 'S' (it runs), or 'E', an int32 errno and a reason;
// later 'X' and what waitpid() said. Each byte that follows the request is a signal to pass on, its
// high bit meaning the whole group; the end of the stream is SIGKILL.
//
// The host gets one byte and, with it, the end of a stream socket, a sealed file that says what is
// asked (question.hpp), and sealed copies of what would run. It answers 'y', or 'n' and a reason,
// and ends its half; then it is told 'S' or 'E' as above.
#include <sys/types.h>

namespace ipybox::launcher {

struct Broker {
    int door = -1;
    int host = -1;                      // -1: nobody is asked, and only the interpreter is run,
    const char* interpreter = nullptr;  // as a last program (programs.hpp)
    bool log = false;
    pid_t ends_with = 0;  // our child whose end is ours, with its status; 0: none
};

// Never returns. The environment is what requests are compared with.
[[noreturn]] void broker_main(const Broker& broker);

}  // namespace ipybox::launcher
