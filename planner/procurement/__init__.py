"""Which machines to buy or rent: price lists, what a run costs, and the search over fleets of machines."""
