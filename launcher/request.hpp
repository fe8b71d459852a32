#pragma once
// What code asks the broker to start, as it was sent: one byte over a stream socket, with
// descriptors: a sealed file, the working directory, the program, and those that the program gets.
// The file holds, in the machine's byte order: the Head; `limits` times the number of a limit and
// its two values; the numbers that the descriptors get (uint32, ascending); and `arguments`, then
// `variables` strings, each its size (uint32), its bytes, and a NUL.
#include <stdint.h>

namespace ipybox::launcher {

struct Head {
    uint32_t magic;
    uint32_t terminal;  // whether the program takes over the terminal that it gets
    uint32_t umask;
    uint32_t limits;
    uint64_t ignored, blocked;  // signals, 1 << number - 1
    uint32_t descriptors, arguments, variables, unused;
};
struct LimitWanted {
    uint64_t resource, soft, hard;
};
constexpr uint32_t request_magic = 0x31585049;  // "IPX1"

// Why there will be no program.
struct Refusal {
    int error = 0;
    char reason[1024] = "";
};

class Request {
public:
    static constexpr unsigned most_descriptors = 250;

    // Waits for it. False: refusal says why; error 0: nobody is there any more.
    bool receive(int link, Refusal& refusal);

    Head head{};
    const LimitWanted* limits = nullptr;
    int directory = -1, program = -1;
    int descriptors[most_descriptors] = {};   // that we have
    uint32_t numbers[most_descriptors] = {};  // that they get
    char** arguments = nullptr;               // ended by null, as the next
    char** variables = nullptr;

private:
    bool receive_descriptors(int link, int& file, Refusal& refusal);
    bool parse(char* data, uint64_t size);
    int received_ = 0;
};

// Whether nobody can change what is in it.
bool is_sealed(int file);
// `what` and errno, or no more than `what` when error says nothing.
bool refuse(Refusal& refusal, int error, const char* what);

}  // namespace ipybox::launcher
