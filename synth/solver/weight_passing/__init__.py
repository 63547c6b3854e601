"""The search for schedules with weight passing: the visits of weights, and the order of ops.

problem          the ranks that keep each stage, and the micro-batches of each rank
compute_order    the order of F, B and W of a rank, and the moves of the search
unshard_placement  the places of UNSHARD and REDUCE_GRAD in a given order, as memory allows
visit_options    the choices by which visits are placed
gradient_sums    the gradients that a rank accumulates until they are reduce-scattered
free_bytes       the memory that a rank has left at each op of an order
programs         the programs of all ranks, as a schedule
bounds           lower bounds in closed form
rank_work        the least work and the least visits of a rank, for these bounds
ring_bounds      the bounds for a ring
small_problems   exact searches, for problems that are small enough
ring_programs    all programs of a rank on a ring
ring_moves       moves of single visits and ops in the programs of a small ring
ring_enumeration all schedules of a tiny problem on a ring, one by one
gather_model     all schedules of a small problem with all-gathers, as a model for CP-SAT
gather_lifetimes the makers and readers of its values
gather_proof     its optimum, solved in a process of its own
first_orders     orders from which the search begins: published ones and others
search           the search
"""
