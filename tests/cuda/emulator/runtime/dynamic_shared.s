# The shared memory that a launch asks for: the last of a module's thread-local variables, so all before it are arrays
# that kernels declare. 227 KiB, which is the most that a block has.
    .section .tbss,"awT",@nobits
    .balign 1024
    .globl aether_dynamic_shared
    .type aether_dynamic_shared, @object
    .size aether_dynamic_shared, 232448
aether_dynamic_shared:
    .zero 232448
    .section .note.GNU-stack,"",@progbits
