"""What binds a plan, what other hardware would bring, and how two plans differ."""
