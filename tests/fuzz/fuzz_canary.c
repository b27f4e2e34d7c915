// The fuzzing set-up under test: two planted faults that scripts/fuzz must see. If it does not, a clean run
// of the other targets means nothing.
//
//   input "ISO!..."            reads one byte past the input: the fuzzer must find the magic by itself, which
//                              needs coverage feedback, and AddressSanitizer must see the read
//   input of CANARY_UB_BYTES   shifts by too much: UBSan must end the run (it is given as a file; fuzzing is
//                              kept to shorter inputs)
#include <stddef.h>
#include <stdint.h>

#define CANARY_UB_BYTES 65

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint32_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == CANARY_UB_BYTES)
        sink = (uint32_t)1 << n;
    if (n > 3 && bytes[0] == 'I' && bytes[1] == 'S' && bytes[2] == 'O' && bytes[3] == '!')
        sink = bytes[n];
    return 0;
}
