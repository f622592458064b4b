"""Types of the scheduler: amounts, snapshot, plan, explanation, and their JSON."""
